//! Graph medians over the tuning's values, to choose them.

use crate::bench::{Operation, Table};
use crate::checks::only;
use crate::rank::Scene;
use std::time::Duration;
use tp_fabric::gpu::two_shot::{Pace, TwoShotTuning};
use tp_fabric::gpu::{GpuError, InboxKind, LineTuning, MailboxConfig};

/// Clock cycles before the first poll over a link.
const PAUSES: &[u32] = &[900, 1500, 2500];

const SIZES: [usize; 11] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
];

type Change = Box<dyn Fn(&mut MailboxConfig)>;
type Plan = (String, Change);

fn plan(name: impl Into<String>, change: impl Fn(&mut MailboxConfig) + 'static) -> Plan {
    (name.into(), Box::new(change))
}

/// One value of every kind for one form of lines, in one shot.
fn lines(form: &'static str, cut: LineTuning) -> Plan {
    let LineTuning {
        warps,
        two_tiles_min,
        four_tiles_min,
        pause,
        stagger,
        ..
    } = cut;
    let tiles = match (two_tiles_min, four_tiles_min) {
        (_, 0) => 4,
        (0, _) => 2,
        _ => 1,
    };
    plan(
        format!("{form} {warps} warps of {tiles}, pause {pause}, stagger {stagger}"),
        move |config| {
            let tuning = &mut config.tuning;
            only(tuning, form);
            match form {
                "dense" => tuning.dense = cut,
                _ => tuning.sparse = cut,
            }
            in_one_shot(config);
        },
    )
}

fn cut(warps: u32, tiles: u64, pause: u32, stagger: u32) -> LineTuning {
    LineTuning {
        two_tiles_min: if tiles == 2 { 0 } else { u64::MAX },
        four_tiles_min: if tiles == 4 { 0 } else { u64::MAX },
        pause,
        pause_max: pause,
        stagger,
        ..LineTuning::without_pause(warps)
    }
}

fn in_one_shot(config: &mut MailboxConfig) {
    config.tuning.two_shot.min = u64::MAX;
}

/// Two shots of all sizes.
fn two_shots(blocks: u32, chunk: u64, (senders, pace, poll): (u32, u32, u32), one_copy: bool) -> Plan {
    let copies = if one_copy { "one copy" } else { "copies" };
    plan(
        format!(
            "two shots, {blocks} blocks, chunks of {chunk}, {senders} senders at {pace}, poll {poll}, {copies}"
        ),
        move |config| {
            config.tuning.two_shot = TwoShotTuning {
                min: 0,
                chunk_max: chunk,
                senders,
                pace: Pace { write: pace, poll },
                large_min: u64::MAX,
                large_pace: Pace::AT_ONCE,
            };
            // As much in all, whatever the blocks.
            let room = u64::from(config.two_shot.blocks) * config.two_shot.region_bytes;
            (config.two_shot.blocks, config.two_shot.region_bytes) = (blocks, room / u64::from(blocks));
            config.one_copy = one_copy;
        },
    )
}

fn plans(kind: InboxKind, config: &MailboxConfig, world: u32) -> Vec<Plan> {
    let mut plans = vec![plan("as routed", |_| {}), plan("one shot", in_one_shot)];
    if world > 2 {
        let blocks = config.two_shot.blocks;
        match kind {
            InboxKind::Device => {
                for (chunk, one_copy) in [
                    (64 << 10, true),
                    (16 << 10, true),
                    (8 << 10, true),
                    (16 << 10, false),
                ] {
                    plans.push(two_shots(blocks, chunk, (0, 0, 0), one_copy));
                }
            }
            InboxKind::PinnedHost => {
                for pace in [
                    (4, 40, 500),
                    (4, 60, 1000),
                    (10, 40, 500),
                    (10, 50, 500),
                    (10, 60, 1000),
                    (10, 72, 1000),
                ] {
                    plans.push(two_shots(blocks, 2 << 10, pace, true));
                }
            }
        }
        return plans;
    }
    let pauses: &[u32] = if kind == InboxKind::Device { &[0] } else { PAUSES };
    for pause in pauses {
        plans.push(lines("lines", cut(4, 1, *pause, 0)));
        plans.push(lines("dense", cut(4, 2, *pause, 0)));
    }
    if kind == InboxKind::Device {
        plans.extend([1, 2, 4, 8].map(|warps| lines("dense", cut(warps, 1, 0, 0))));
    } else {
        for stagger in [0, 240, 360, 480] {
            plans.extend([600, 900].map(|pause| lines("dense", cut(1, 1, pause, stagger))));
        }
    }
    for chunk in [8 << 10, 16 << 10, 32 << 10] {
        plans.push(plan(format!("chunks of {chunk}"), move |config| {
            only(&mut config.tuning, "chunks");
            config.tuning.chunk_max = chunk;
        }));
    }
    plans
}

pub(crate) fn run(scene: &mut Scene, kind: InboxKind) -> Result<(), GpuError> {
    if scene.first() {
        let heads: Vec<String> = SIZES.iter().map(|s| format!("{} KiB", s >> 10)).collect();
        println!(
            "| {kind} all_reduce graph µs | {} |\n|---|{}",
            heads.join(" | "),
            "---|".repeat(SIZES.len())
        );
    }
    let measured = scene.config(kind, Duration::from_secs(1))?;
    for (name, change) in plans(kind, &measured, scene.meeting.world().0) {
        let mailbox = scene.mailbox_of(kind, &*change)?;
        let table = Table::new(scene, &mailbox)?;
        let mut cells = Vec::new();
        // Lines of large payloads through pinned memory would take most of the time, and are not what they are for.
        let most = if kind == InboxKind::PinnedHost && name.contains("warps") {
            512 << 10
        } else {
            4 << 20
        };
        for bytes in SIZES.into_iter().filter(|bytes| *bytes <= most) {
            cells.push(format!(
                "{:.2}",
                table.graph(scene, Operation::AllReduce, bytes)?.median
            ));
        }
        if scene.first() {
            println!("| {name} | {} |", cells.join(" | "));
        }
        scene.meeting.barrier("end of a plan")?;
    }
    Ok(())
}

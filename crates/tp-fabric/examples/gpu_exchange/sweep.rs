//! Graph medians over the tuning's values, to choose them.

use crate::bench::{Operation, Table};
use crate::checks::only;
use crate::rank::Scene;
use std::rc::Rc;
use tp_fabric::gpu::{GpuError, InboxKind, LineTuning, Tuning};

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

type Change = Box<dyn Fn(&mut Tuning)>;

/// One value of every kind for one form of lines.
fn lines(form: &'static str, warps: u32, tiles: u64, pause: u32) -> (String, Change) {
    let cut = LineTuning {
        two_tiles_min: if tiles == 2 { 0 } else { u64::MAX },
        four_tiles_min: if tiles == 4 { 0 } else { u64::MAX },
        pause,
        pause_max: pause,
        ..LineTuning::without_pause(warps)
    };
    let change = move |tuning: &mut Tuning| {
        only(tuning, form);
        match form {
            "dense" => tuning.dense = cut,
            _ => tuning.sparse = cut,
        }
    };
    (
        format!("{form} {warps} warps of {tiles}, pause {pause}"),
        Box::new(change),
    )
}

/// Dense lines of one tile a warp, whose warps write in turn.
fn turns(warps: u32, pause: u32, stagger: u32) -> (String, Change) {
    let change = move |tuning: &mut Tuning| {
        only(tuning, "dense");
        tuning.dense = LineTuning {
            pause,
            pause_max: pause,
            stagger,
            ..LineTuning::without_pause(warps)
        };
    };
    let name = format!("dense {warps} warps, pause {pause}, stagger {stagger}");
    (name, Box::new(change))
}

/// More than two ranks and inboxes in device memory: warps and tiles of each form, in one shot and in two.
fn many_ranks() -> Vec<(String, Change)> {
    let cuts = [(2, 1), (4, 1), (8, 1), (4, 2), (8, 2), (4, 4)];
    let forms = cuts
        .into_iter()
        .flat_map(|(warps, tiles)| ["dense", "lines"].map(|form| lines(form, warps, tiles, 0)));
    let chunks = [8 << 10, 16 << 10, 32 << 10].map(|chunk| -> (String, Change) {
        let change = move |tuning: &mut Tuning| {
            only(tuning, "chunks");
            tuning.chunk_max = chunk;
        };
        (format!("chunks of {chunk}"), Box::new(change))
    });
    let mut plans: Vec<(String, Change)> = Vec::new();
    for (name, change) in forms.chain(chunks) {
        let change = Rc::new(change);
        for (shots, two_shot_min) in [("one", u64::MAX), ("two", 0)] {
            let change = Rc::clone(&change);
            plans.push((
                format!("{name}, {shots}-shot"),
                Box::new(move |tuning| {
                    change(tuning);
                    tuning.two_shot_min = two_shot_min;
                }),
            ));
        }
    }
    plans
}

fn plans(kind: InboxKind, world: u32) -> Vec<(String, Change)> {
    let mut plans: Vec<(String, Change)> = vec![("as routed".to_owned(), Box::new(|_: &mut Tuning| {}))];
    if world > 2 && kind == InboxKind::PinnedHost {
        for stagger in [360, 720, 1080] {
            for (shots, two_shot_min) in [("one", u64::MAX), ("two", 0)] {
                let (name, change) = turns(1, 900, stagger);
                plans.push((
                    format!("{name}, {shots}-shot"),
                    Box::new(move |tuning| {
                        let min = tuning.dense_min;
                        change(tuning);
                        tuning.dense_min = min;
                        tuning.two_shot_min = two_shot_min;
                    }),
                ));
            }
        }
    }
    if world > 2 {
        for form in ["as routed", "lines", "dense", "chunks"] {
            for (shots, two_shot_min) in [("one", u64::MAX), ("two", 0)] {
                plans.push((
                    format!("{form}, {shots}-shot"),
                    Box::new(move |tuning| {
                        only(tuning, form);
                        tuning.two_shot_min = two_shot_min;
                    }),
                ));
            }
        }
        if kind == InboxKind::Device {
            plans.extend(many_ranks());
        }
        return plans;
    }
    let pauses: &[u32] = if kind == InboxKind::Device { &[0] } else { PAUSES };
    for pause in pauses {
        plans.push(lines("lines", 4, 1, *pause));
        plans.push(lines("dense", 4, 2, *pause));
    }
    if kind == InboxKind::Device {
        plans.extend([1, 2, 4, 8].map(|warps| lines("dense", warps, 1, 0)));
    } else {
        for stagger in [0, 240, 360, 480] {
            for pause in [600, 900] {
                plans.push(turns(1, pause, stagger));
            }
        }
    }
    for (warps, chunk) in [(7, 8 << 10), (7, 16 << 10), (7, 32 << 10)] {
        plans.push((
            format!("chunks {warps} warps of {chunk}"),
            Box::new(move |t| {
                only(t, "chunks");
                (t.chunk_warps, t.chunk_max) = (warps, chunk);
            }),
        ));
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
    for (name, change) in plans(kind, scene.meeting.world().0) {
        let mailbox = scene.mailbox(kind, &*change)?;
        let table = Table::new(scene, &mailbox)?;
        let mut cells = Vec::new();
        // Lines of large payloads through pinned memory would take most of the time, and are not what they are for.
        let most = if kind == InboxKind::PinnedHost && !name.starts_with("chunks") {
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

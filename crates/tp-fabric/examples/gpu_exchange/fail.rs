//! A peer that never arrives: the wait ends, the record names it, later launches do nothing.

use crate::checks::{Buffer, driver, only};
use crate::rank::Scene;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tp_fabric::gpu::{GpuError, InboxKind, Mailbox, SmallPath};
use tp_fabric::types::{DType, Rank, ReduceOp};

const WAIT: Duration = Duration::from_millis(300);

pub(crate) fn run(scene: &mut Scene, kind: InboxKind) -> Result<(), GpuError> {
    let absent = Rank(scene.meeting.world().0 - 1);
    for name in ["lines", "chunks", "two shots"] {
        for abort in [false, true] {
            let mut config = scene.config(kind, if abort { Duration::from_secs(30) } else { WAIT })?;
            only(&mut config.tuning, name);
            let mailbox = Mailbox::open(Arc::clone(&scene.device), scene.meeting.as_mut(), config)?;
            if scene.meeting.rank() != absent {
                wait_for_nobody(scene, &mailbox, absent, name, abort)?;
            }
            scene.meeting.barrier("end of a failure")?;
        }
    }
    Ok(())
}

fn wait_for_nobody(
    scene: &mut Scene,
    mailbox: &Mailbox,
    absent: Rank,
    name: &str,
    abort: bool,
) -> Result<(), GpuError> {
    let stream = scene.device.stream()?;
    let (send, recv) = (Buffer::new(4096)?, Buffer::new(4096)?);
    recv.write(0, &[0xa5; 4096])?;
    let call = || {
        // SAFETY: both buffers hold 4096 bytes, and the stream is waited for below.
        unsafe {
            mailbox.all_reduce(
                send.at(0),
                recv.at(0),
                4096,
                DType::Bf16,
                ReduceOp::Sum,
                stream.cu_stream(),
            )
        }
    };
    let wait = || stream.synchronize().map_err(|e| driver("synchronize", e));
    let begin = Instant::now();
    call()?;
    if abort {
        std::thread::sleep(Duration::from_millis(50));
        mailbox.abort("a check");
    }
    wait()?;
    let took = begin.elapsed();
    let record = mailbox.record();
    let label = format!(
        "{} {name} {}",
        mailbox.config().inbox,
        if abort { "abort" } else { "timeout" }
    );
    println!(
        "rank {} {label}: waited {} ms, {record:?}",
        scene.meeting.rank(),
        took.as_millis()
    );
    let named = record
        .as_ref()
        .is_some_and(|r| r.missing == [absent] && r.timed_out != abort);
    expect(scene, &label, "the record names the missing rank and why", named);
    let bound = if abort { Duration::from_secs(2) } else { WAIT * 5 };
    expect(scene, &label, "the wait was bounded", took < bound);
    let begin = Instant::now();
    call()?;
    wait()?;
    expect(
        scene,
        &label,
        "a later launch does nothing at once",
        begin.elapsed() < Duration::from_millis(100),
    );
    expect(
        scene,
        &label,
        "the result was left alone",
        recv.read(0, 4096)? == [0xa5; 4096],
    );
    Ok(())
}

fn expect(scene: &mut Scene, label: &str, what: &str, holds: bool) {
    if holds {
        scene.passed += 1;
    } else {
        scene.failed += 1;
        println!("FAIL rank {} {label}: {what}", scene.meeting.rank());
    }
}

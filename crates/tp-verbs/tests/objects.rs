//! Devices, regions, queue pairs and completions over a libibverbs that keeps count: what is made is freed once and in
//! order, and every failing call is told with its place, error number and usual cause.
#![expect(clippy::unwrap_used, reason = "a test's own library must be there")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tp_verbs::post::{Flag, Poster, Put, Write};
use tp_verbs::{
    Capacity, CompletionQueue, Context, Error, Far, Gid, MemoryRegion, Mtu, Near, Pages, Path, PortNum,
    ProtectionDomain, QueuePair, Search, State, Verbs,
};

/// The stand-in counts for the whole process, so its users take turns.
static TURN: Mutex<()> = Mutex::new(());

/// The stand-in, which cargo builds beside the tests.
fn stand_in() -> (PathBuf, Arc<Verbs>) {
    let folder = std::env::current_exe().unwrap();
    let folder = folder.ancestors().nth(2).unwrap().join("examples");
    let file = folder.join(format!(
        "{}stand_in{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    ));
    (file.clone(), Arc::new(Verbs::load(&Search::only(file)).unwrap()))
}

/// Objects that the stand-in gave out and did not get back, and wrong uses that it saw.
fn counts(file: &std::path::Path) -> (i64, i64) {
    let name = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    let ask = |symbol: &std::ffi::CStr| {
        // SAFETY: the library is loaded; both functions take nothing and return an i64.
        unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            let address = libc::dlsym(handle, symbol.as_ptr());
            assert!(!address.is_null());
            std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn() -> i64>(address)()
        }
    };
    (ask(c"stand_in_live"), ask(c"stand_in_wrong"))
}

struct End {
    pair: QueuePair,
    region: MemoryRegion,
    completions: Arc<CompletionQueue>,
    context: Arc<Context>,
}

fn near() -> Near {
    Near {
        port: PortNum(1),
        gid_index: 1,
        gid: gid(1),
        first_packet: 1,
    }
}

fn gid(last: u8) -> Gid {
    let mut bytes = [0; 16];
    bytes[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, last]);
    Gid(bytes)
}

fn open(verbs: &Arc<Verbs>, name: &str) -> Result<End, Error> {
    let context = Context::open(verbs, name)?;
    context.gid(PortNum(1), 1)?;
    let domain = ProtectionDomain::new(&context)?;
    let region = MemoryRegion::register(&domain, &Arc::new(Pages::new(8192).unwrap()))?;
    let completions = CompletionQueue::new(&context, 64)?;
    let pair = QueuePair::new(
        &domain,
        &completions,
        Capacity {
            sends: 64,
            inline: 64,
        },
    )?;
    let far = Far {
        queue_pair: 0x17,
        gid: gid(2),
        lid: 0,
        first_packet: 9,
    };
    pair.connect(&near(), &far, &Path::new(Mtu::from_code(5).unwrap()))?;
    Ok(End {
        pair,
        region,
        completions,
        context,
    })
}

/// Posts one write with one flag over the end's own region.
fn post(end: &End, id: u64) -> Result<(), Error> {
    let (local, remote) = (end.region.local(), end.region.remote());
    let poster = Poster {
        local,
        remote,
        max_inline: end.pair.capacity().inline,
    };
    let writes = [Write {
        local: local.start,
        remote: remote.start + 4096,
        length: 512,
    }];
    let flags = [Flag {
        remote: remote.start,
        value: 3,
    }];
    let put = Put {
        id,
        local_key: local.key,
        remote_key: remote.key,
        writes: &writes,
        flags: &flags,
        flags_inside: None,
    };
    let chain = poster.chain(&put).unwrap();
    // SAFETY: both windows are the region's, which the end holds.
    unsafe { end.pair.post(&chain) }
}

#[test]
fn what_is_made_is_freed_once_and_children_before_parents() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (file, verbs) = stand_in();
    let before = counts(&file);
    for _ in 0..100 {
        let end = open(&verbs, "good").unwrap();
        assert_eq!(end.pair.state().unwrap(), State::ReadyToSend);
        assert_eq!(
            end.context.port(PortNum(1)).unwrap().active_mtu.map(Mtu::bytes),
            Some(4096)
        );
        assert_eq!(end.context.next_event().unwrap(), None);
        let End {
            pair,
            region,
            completions,
            context,
        } = end;
        // The context goes first from here: it must outlive all that was made from it.
        drop(context);
        drop(completions);
        pair.fail().unwrap();
        drop(region);
        drop(pair);
    }
    assert_eq!(
        counts(&file),
        before,
        "objects left, or a parent freed before its child"
    );
}

#[test]
fn every_failing_call_is_told_with_its_place_number_and_cause_and_leaves_nothing() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (file, verbs) = stand_in();
    let before = counts(&file);
    for (device, parts) in [
        ("ibv_open_device=13", ["errno 13", "uverbs"]),
        ("ibv_alloc_pd=12", ["errno 12", "protection domain"]),
        ("ibv_reg_mr=12", ["errno 12", "ulimit -l"]),
        ("ibv_create_cq=22", ["errno 22", "more entries"]),
        ("ibv_create_qp=12", ["errno 12", "queue pairs"]),
        (
            "ibv_modify_qp=110",
            ["GID 1 ::ffff:192.0.2.1, peer ::ffff:192.0.2.2", "does not answer"],
        ),
        ("ibv_query_gid=61", ["errno 61", "GID entry is empty"]),
    ] {
        let text = open(&verbs, device).err().unwrap().to_string();
        let (call, _) = device.split_once('=').unwrap();
        for part in [
            call,
            &format!("device {device}"),
            file.to_str().unwrap(),
            parts[0],
            parts[1],
        ] {
            assert!(text.contains(part), "`{part}` is missing in: {text}");
        }
        assert_eq!(counts(&file), before, "after {device}");
    }
}

#[test]
fn a_full_queue_is_an_error_and_a_failed_completion_names_its_cause() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (file, verbs) = stand_in();
    let before = counts(&file);
    let text = post(&open(&verbs, "ibv_post_send=12").unwrap(), 1)
        .unwrap_err()
        .to_string();
    assert!(text.contains("the send queue is full"), "{text}");

    let end = open(&verbs, "good").unwrap();
    for (id, failed) in [(5, false), (99, true)] {
        post(&end, id).unwrap();
        let mut seen = Vec::new();
        assert_eq!(
            end.completions.poll(|completion| seen.push(completion)).unwrap(),
            1
        );
        assert_eq!(
            (seen[0].id, seen[0].queue_pair, seen[0].result.is_err()),
            (id, end.pair.number(), failed)
        );
        if let Err(failure) = &seen[0].result {
            let text = failure.to_string();
            assert!(
                text.contains("retry counter") && text.contains("status 12") && text.contains("MTU"),
                "{text}"
            );
            assert!(!failure.is_flush());
        }
    }
    assert_eq!(end.completions.poll(|_| ()).unwrap(), 0);
    drop(end);
    assert_eq!(counts(&file), before);
}

#[test]
fn an_unknown_device_is_answered_with_those_that_are_there() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, verbs) = stand_in();
    let text = Context::open(&verbs, "mlx5_7").unwrap_err().to_string();
    assert!(
        text.contains("mlx5_7") && text.contains("there are: good"),
        "{text}"
    );
    assert!(Context::open(&verbs, "good").unwrap().port(PortNum(2)).is_err());
    let empty = Context::open(&verbs, "good")
        .unwrap()
        .gid(PortNum(1), 0)
        .unwrap_err();
    assert_eq!(empty.errno(), Some(libc::ENODATA));
}

//! Strangers, impostors and mistaken ranks at the port of real ranks, and real ranks whose peers keep to no protocol.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod control_support;

use control_support::{Process, Scene, play_if_rank};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);
const QUICK: &[(&str, &str)] = &[("TF_TP_HEARTBEAT_S", "0.05"), ("TF_TP_HEARTBEAT_LIMIT_S", "0.6")];

#[test]
fn rank_process() {
    play_if_rank();
}

/// A connection to rank 0 as soon as it listens.
fn visit(port: u16) -> TcpStream {
    let until = Instant::now() + LIMIT;
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(socket) => {
                socket.set_read_timeout(Some(LIMIT)).unwrap();
                return socket;
            }
            Err(error) => assert!(Instant::now() < until, "rank 0 does not listen: {error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Rank 0 of two waits while visitors come; then rank 1 comes, and both end well. Gives what rank 0 says of its visitors.
fn with_visitors(visitors: impl FnOnce(u16) -> Vec<TcpStream>) -> String {
    let scene = Scene::new();
    let mut zero = scene.start(0, 2, &[], "group barrier:x close");
    let here = visitors(scene.port);
    let began = Instant::now();
    let one = scene.start(1, 2, &[], "group barrier:x close");
    let said = zero.line("up ", LIMIT);
    let took = began.elapsed();
    // The start of a process is in it; the 2 s of a handshake that never ends are not.
    assert!(took < Duration::from_secs(5), "{took:?}");
    for rank in [zero, one] {
        rank.end(LIMIT).code_is(0);
    }
    drop(here);
    said
}

#[test]
fn silent_connections_delay_nobody() {
    let said = with_visitors(|port| (0..20).map(|_| visit(port)).collect());
    // Those whose two seconds were not over yet are not counted.
    assert!(said.starts_with("up strangers="), "{said}");
}

#[test]
fn a_scanner_is_turned_away_and_counted() {
    let said = with_visitors(|port| {
        let mut scanner = visit(port);
        scanner.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(
            matches!(scanner.read(&mut [0; 16]), Ok(0) | Err(_)),
            "an answer to a scanner"
        );
        vec![scanner]
    });
    assert!(said.contains("strangers=1 refused=[]"), "{said}");
}

#[test]
fn a_slow_loris_is_cut_off() {
    let said = with_visitors(|port| {
        let mut loris = visit(port);
        let began = Instant::now();
        for byte in b"TPBS\x01\0\0\0\x01\0\0\0".iter().chain(&[7; 100]) {
            if loris.write_all(&[*byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(150));
        }
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        vec![loris]
    });
    assert!(said.contains("strangers=1"), "{said}");
}

#[test]
fn a_thousand_strangers_at_once_delay_no_process() {
    let said = with_visitors(|port| {
        let visit_as = |number: usize| {
            let mut socket = visit(port);
            let words: [&[u8]; 4] = [
                b"",
                b"GET / HTTP/1.1\r\n\r\n",
                b"TPB",
                b"TPBS\x01\0\0\0\x01\0\0\0",
            ];
            // Rank 0 may have closed it already to make room.
            let _ = socket.write_all(words[number % 4]);
            socket
        };
        (0..1000).map(visit_as).collect()
    });
    let count = said
        .split(['=', ' '])
        .nth(2)
        .and_then(|text| text.parse::<u32>().ok());
    assert!(count.is_some_and(|count| count > 200), "{said}");
}

#[test]
fn another_version_is_told_both_versions() {
    let said = with_visitors(|port| {
        let mut old = visit(port);
        old.write_all(b"TPBS\x63\0\0\0\x01\0\0\0").unwrap();
        old.write_all(&[7; 32]).unwrap();
        let mut answer = Vec::new();
        old.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.contains("it speaks protocol 99, rank 0 speaks 1"),
            "{answer}"
        );
        vec![old]
    });
    assert!(
        said.contains("refused=[\"127.0.0.1: it speaks protocol 99"),
        "{said}"
    );
}

#[test]
fn a_recorded_handshake_of_a_process_opens_nothing_later() {
    // What rank 1 says on its first connection is written down on its way.
    let scene = Scene::new();
    let tap = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let tap_port = tap.local_addr().unwrap().port().to_string();
    let zero = scene.start(0, 2, &[], "group close");
    let tapped = [("TF_TP_PORT", tap_port.as_str()), ("TF_TP_BOOT_TIMEOUT", "3")];
    let one = scene.start(1, 2, &tapped, "group close");
    let (mut client, _) = tap.accept().unwrap();
    drop(tap);
    let mut server = visit(scene.port);
    let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let back = std::thread::spawn(move || std::io::copy(&mut from_server, &mut to_client));
    let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
    // The second connection finds nobody, so that rank 1 gives up and its first one ends.
    while let Ok(n @ 1..) = client.read(&mut buffer) {
        heard.extend_from_slice(&buffer[..n]);
        server.write_all(&buffer[..n]).unwrap();
    }
    server.shutdown(std::net::Shutdown::Both).unwrap();
    let _ = back.join().unwrap();
    assert!(heard.len() > 80, "a whole handshake was heard");
    one.end(LIMIT).code_is(70);
    zero.end(LIMIT).code_is(70).says(&["lost rank 1 on "]);
    drop((client, server));

    // The same bytes again, at another boot of the same session with the same secret.
    let said = with_visitors(|port| {
        let mut replay = visit(port);
        replay.write_all(&heard).unwrap();
        let mut answer = Vec::new();
        replay.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains("it does not know the secret"), "{answer}");
        vec![replay]
    });
    assert!(
        said.contains("refused=[\"127.0.0.1: it does not know the secret"),
        "{said}"
    );
}

#[test]
fn another_world_and_a_rank_twice_cost_the_mistaken_alone() {
    let scene = Scene::new();
    let zero = scene.start(0, 3, &[], "group barrier:x close");
    let mut one = scene.start(1, 3, &[], "connect hang");
    one.line("connected", LIMIT);
    scene
        .start(1, 3, &[], "group close")
        .end(LIMIT)
        .code_is(2)
        .says(&[
            "rank 0 on ",
            "refused this rank: rank 1 is already here, from ",
            "(process ",
        ]);
    scene
        .start(2, 4, &[], "group close")
        .end(LIMIT)
        .code_is(2)
        .says(&["this group has a world of 3, rank 2 came with 4"]);
    scene
        .start(2, 3, &[("TF_TP_SECRET", "")], "group close")
        .end(LIMIT)
        .code_is(2)
        .says(&["rank 0 has a secret, this rank has none"]);
    // The one that sits there keeps its seat.
    one.signal(Signal::SIGKILL);
    one.end(LIMIT);
    zero.end(LIMIT)
        .code_is(70)
        .says(&["lost rank 1 on ", "during the boot"]);
}

#[test]
fn a_rank_alone_says_what_the_port_did_and_ends_at_its_deadline() {
    let scene = Scene::new();
    let began = Instant::now();
    let lonely = scene.start(1, 2, &[("TF_TP_BOOT_TIMEOUT", "1")], "group close");
    lonely
        .end(LIMIT)
        .code_is(70)
        .says(&["failed to reach rank 0 at localhost port", "closed (refused)"]);
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[test]
fn garbage_on_the_fate_channel_ends_the_others_and_names_its_sender() {
    for (kind, says) in [
        ("foreign", "sent bytes that are no frame of the fate channel"),
        ("oversized", "sent a frame that claims 4294967295 bytes"),
        ("unknown", "sent a frame of kind 77"),
        ("truncated exit:0", "in the middle of a frame"),
    ] {
        let scene = Scene::new();
        let bad = format!("raw control:{kind} hang");
        let mut ranks = scene.start_all(&[], &["group hang", &bad, "group hang"]);
        let began = Instant::now();
        for good in [2, 0] {
            ranks
                .remove(good)
                .end(LIMIT)
                .code_is(70)
                .says(&["rank 1 on ", says]);
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        drop(ranks);
    }
}

#[test]
fn garbage_on_the_plan_link_ends_its_reader_and_names_rank_0() {
    for (kind, says) in [
        ("foreign", "sent bytes that are no plan"),
        ("oversized", "sent a plan that claims 4294967295 words"),
        ("unknown", "sent a plan of unknown kind 77"),
        ("batch", "sent a garbled batch of plans"),
        ("batch-beyond", "sent a garbled batch of plans"),
        ("truncated exit:0", "rank 0 on "),
    ] {
        let scene = Scene::new();
        let bad = format!("raw plan-raw:{kind} hang");
        let mut ranks = scene.start_all(&[], &[&bad, "bare recv"]);
        ranks.remove(1).end(LIMIT).code_is(70).says(&["rank 0 on ", says]);
        drop(ranks);
    }
}

/// Rank 0 sends far more than the connection takes to a follower that reads nothing.
fn stuck_in_a_plan(scene: &Scene) -> Vec<Process> {
    let mut ranks = scene.start_all(QUICK, &["session plan:4194304", "session hang", "session hang"]);
    ranks[0].line("sending", LIMIT);
    for rank in &mut ranks[1..] {
        rank.line("up", LIMIT);
    }
    std::thread::sleep(Duration::from_millis(200));
    ranks
}

#[test]
fn a_sender_with_a_full_buffer_leaves_when_its_reader_is_killed() {
    let scene = Scene::new();
    let ranks = stuck_in_a_plan(&scene);
    ranks[1].signal(Signal::SIGKILL);
    let ends: Vec<_> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
    for survivor in [0, 2] {
        ends[survivor].code_is(70).says(&["rank 1 on "]);
        let after = ends[survivor].at.saturating_duration_since(ends[1].at);
        assert!(after < Duration::from_secs(1), "{after:?}");
    }
}

#[test]
fn a_sender_with_a_full_buffer_leaves_when_its_reader_is_stopped() {
    let scene = Scene::new();
    let mut ranks = stuck_in_a_plan(&scene);
    ranks[1].signal(Signal::SIGSTOP);
    let stopped = Instant::now();
    let reader = ranks.remove(1);
    for survivor in ranks {
        let end = survivor.end(LIMIT);
        end.code_is(70).says(&["rank 1 on ", "no heartbeat for 0.6 s"]);
        let after = end.at.saturating_duration_since(stopped);
        assert!(after < Duration::from_millis(2500), "{after:?}");
    }
    reader.signal(Signal::SIGCONT);
    reader.end(LIMIT).code_is(70);
}

#[test]
fn a_rank_killed_at_any_moment_of_a_session_s_boot_ends_the_others() {
    let scene = Scene::new();
    // From before the first connection to after the last.
    for moment in 0..12u64 {
        let victim = (moment % 3) as usize;
        let short = [("TF_TP_BOOT_TIMEOUT", "3")];
        let ranks = scene.start_all(&short, &["session hang"; 3]);
        std::thread::sleep(Duration::from_millis(10 + 12 * moment));
        ranks[victim].signal(Signal::SIGKILL);
        let ends: Vec<_> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
        for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            end.code_is(70).says(&[&format!("rank {victim}")]);
            let after = end.at.saturating_duration_since(ends[victim].at);
            // One that had not come yet is missed at the deadline of the boot.
            assert!(
                after < Duration::from_secs(8),
                "moment {moment}: rank {rank} left {after:?} later"
            );
        }
    }
}

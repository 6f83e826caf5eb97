//! Two hosts with a cable between them, as network namespaces: the cable is cut, both ways and one way.
//!
//! Needs root and `ip`; says so and ends where it has neither.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod control_support;

use control_support::{Process, Scene, play_if_rank, skipped};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);
const PORT: u16 = 29500;

#[test]
fn rank_process() {
    play_if_rank();
}

/// Two namespaces and a pair of virtual ports between them; gone when dropped.
struct Cable {
    ends: [String; 2],
}

fn ip(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Cable {
    /// `None` where this machine lets us make none.
    fn new(name: &str) -> Option<Self> {
        let own = std::process::id();
        let ends = ["a", "b"].map(|end| format!("tp-{name}-{own}-{end}"));
        if !ip(&format!("netns add {}", ends[0])) {
            skipped("hosts with a cable between them: needs root and `ip netns`");
            return None;
        }
        let cable = Self { ends };
        let [a, b] = &cable.ends;
        for step in [
            format!("netns add {b}"),
            format!("link add tpc0 netns {a} type veth peer name tpc0 netns {b}"),
            format!("-n {a} address add 192.0.2.1/24 dev tpc0"),
            format!("-n {b} address add 192.0.2.2/24 dev tpc0"),
            format!("-n {a} link set tpc0 up"),
            format!("-n {b} link set tpc0 up"),
        ] {
            assert!(ip(&step), "ip {step}");
        }
        Some(cable)
    }

    fn start(&self, scene: &Scene, rank: u32, extra: &[(&str, &str)], script: &str) -> Process {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.ends[rank as usize]])
            .arg(std::env::current_exe().unwrap());
        let mut all = vec![("TF_TP_MASTER", "192.0.2.1")];
        all.extend(extra);
        scene.start_by(command, rank, 2, &all, script)
    }

    /// As [`Cable::start`], with another file in the place of `/etc/hosts`.
    fn start_with_hosts(
        &self,
        scene: &Scene,
        rank: u32,
        hosts: &Path,
        master: &str,
        extra: &[(&str, &str)],
    ) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.ends[rank as usize], "sh", "-c"]);
        // Mounted in the namespace of mounts that `ip netns exec` makes, so that nobody else sees it.
        command
            .arg(r#"mount --bind "$0" /etc/hosts && exec "$@""#)
            .arg(hosts)
            .arg(std::env::current_exe().unwrap());
        let mut all = vec![("TF_TP_MASTER", master)];
        all.extend(extra);
        scene.start_by(command, rank, 2, &all, "group close")
    }

    /// A step of `ip` at one end.
    fn at(&self, end: usize, step: &str) {
        let step = format!("-n {} {step}", self.ends[end]);
        assert!(ip(&step), "ip {step}");
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for end in &self.ends {
            ip(&format!("netns delete {end}"));
        }
    }
}

/// Two ranks at the two ends; `cut` cuts, and both are to be out within the limit and a quarter of a second.
fn survives(name: &str, cut: impl Fn(&Cable) -> String, blamed_on_0: &str, blamed_on_1: &str) {
    let scene = Scene::elsewhere(PORT);
    let Some(cable) = Cable::new(name) else { return };
    let quick = [("TF_TP_HEARTBEAT_S", "0.1"), ("TF_TP_HEARTBEAT_LIMIT_S", "1")];
    let mut ranks = [0, 1].map(|rank| cable.start(&scene, rank, &quick, "group hang"));
    for rank in &mut ranks {
        rank.line("up", LIMIT);
    }
    std::thread::sleep(Duration::from_millis(300));
    let at = Instant::now();
    let step = cut(&cable);
    assert!(ip(&step), "ip {step}");
    let [zero, one] = ranks.map(|rank| rank.end(LIMIT));
    zero.code_is(70).says(&[blamed_on_0]);
    one.code_is(70).says(&[blamed_on_1]);
    for end in [zero, one] {
        let after = end.at.saturating_duration_since(at);
        println!("{name}: out {after:?} after the cut, with a limit of 1 s");
        // The limit and 250 ms; the rest is for a busy machine.
        assert!(after < Duration::from_millis(3000), "{after:?}");
    }
}

#[test]
fn a_cut_cable_ends_both_ranks_within_the_limit() {
    let cut = |cable: &Cable| format!("-n {} link set tpc0 down", cable.ends[0]);
    survives("cut", cut, "no heartbeat for 1.0 s", "no heartbeat for 1.0 s");
}

#[test]
fn a_cable_cut_in_one_direction_ends_both_ranks_within_the_limit() {
    // Rank 1 is not heard any more, its acknowledgements included, so that before long rank 0's kernel sends nothing new
    // either. Each sees it on its own; which word rank 1 gets first is open.
    let cut = |cable: &Cable| format!("-n {} route add blackhole 192.0.2.1/32", cable.ends[1]);
    survives("half", cut, "no heartbeat for 1.0 s", "failed in phase");
}

#[test]
fn a_cable_cut_in_the_other_direction_ends_both_ranks_within_the_limit() {
    let cut = |cable: &Cable| format!("-n {} route add blackhole 192.0.2.2/32", cable.ends[0]);
    survives("flah", cut, "failed in phase", "no heartbeat for 1.0 s");
}

#[test]
fn dropped_connection_requests_are_told_from_closed_ports_and_outlived() {
    let scene = Scene::elsewhere(PORT);
    let Some(cable) = Cable::new("syn") else { return };
    // Packets to rank 0 go to a card that nobody has, as if a firewall dropped them.
    let nobody = "neigh replace 192.0.2.1 lladdr 02:00:00:00:00:99 dev tpc0 nud permanent";
    cable.at(1, nobody);
    let began = Instant::now();
    let lonely = cable.start(&scene, 1, &[("TF_TP_BOOT_TIMEOUT", "2")], "group close");
    lonely
        .end(LIMIT)
        .code_is(70)
        .says(&["port 29500", "192.0.2.1: filtered (no answer)"]);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());

    // Those that are dropped for a while cost that while.
    let ranks = [0, 1].map(|rank| cable.start(&scene, rank, &[], "group close"));
    std::thread::sleep(Duration::from_millis(1500));
    cable.at(1, "neigh del 192.0.2.1 dev tpc0");
    for rank in ranks {
        rank.end(LIMIT).code_is(0);
    }
}

#[test]
fn a_master_whose_first_address_is_dead_is_reached_by_the_next() {
    let scene = Scene::elsewhere(PORT);
    let Some(cable) = Cable::new("first") else { return };
    cable.at(1, "address add 2001:db8::2/64 dev tpc0 nodad");
    let directory = tempfile::tempdir().unwrap();
    let hosts = directory.path().join("hosts");
    std::fs::write(
        &hosts,
        "127.0.0.1 localhost\n2001:db8::77 rank-zero\n192.0.2.1 rank-zero\n",
    )
    .unwrap();
    let zero = cable.start(&scene, 0, &[], "group close");
    let one = cable.start_with_hosts(&scene, 1, &hosts, "rank-zero", &[]);
    for rank in [zero, one] {
        rank.end(LIMIT).code_is(0);
    }
    // Where both are dead, each is named with what it did.
    std::fs::write(
        &hosts,
        "127.0.0.1 localhost\n2001:db8::77 rank-zero\n192.0.2.77 rank-zero\n",
    )
    .unwrap();
    let lonely = cable.start_with_hosts(&scene, 1, &hosts, "rank-zero", &[("TF_TP_BOOT_TIMEOUT", "4")]);
    lonely
        .end(LIMIT)
        .code_is(70)
        .says(&["rank-zero port 29500", "2001:db8::77: ", "192.0.2.77: "]);
}

/// Two ranks that meet over a cable; each says at which address the others reach it.
fn addresses(cable: &Cable, scene: &Scene, master: &str) -> [String; 2] {
    let extra = [("TF_TP_MASTER", master)];
    let mut ranks = [0, 1].map(|rank| cable.start(scene, rank, &extra, "group barrier:x close"));
    let said = [0, 1].map(|rank: usize| ranks[rank].line("address=", LIMIT)["address=".len()..].to_owned());
    for rank in ranks {
        rank.end(LIMIT).code_is(0);
    }
    said
}

#[test]
fn addresses_on_the_loopback_device_over_unnumbered_links_are_legal() {
    let scene = Scene::elsewhere(PORT);
    let Some(cable) = Cable::new("unn") else { return };
    for (end, own, other) in [(0, 7, 8), (1, 8, 7)] {
        cable.at(end, "address flush dev tpc0");
        cable.at(end, "link set lo up");
        cable.at(end, &format!("address add 198.51.100.{own}/32 dev lo"));
        cable.at(
            end,
            &format!("route add 198.51.100.{other}/32 dev tpc0 src 198.51.100.{own}"),
        );
    }
    assert_eq!(
        addresses(&cable, &scene, "198.51.100.7"),
        ["198.51.100.7", "198.51.100.8"]
    );
}

#[test]
fn a_rank_is_reached_at_the_source_of_its_route_to_the_master() {
    let scene = Scene::elsewhere(PORT);
    let Some(cable) = Cable::new("src") else { return };
    for end in [0, 1] {
        // An earlier interface with an address that leads nowhere, and another on the cable's own subnet.
        for (name, address) in [
            ("tpa0", format!("203.0.113.{}/24", 9 + end)),
            ("tpb0", format!("192.0.2.{}/24", 50 + end)),
        ] {
            cable.at(end, &format!("link add {name} type veth peer name {name}x"));
            cable.at(end, &format!("address add {address} dev {name} metric 1000"));
            cable.at(end, &format!("link set {name} up"));
            cable.at(end, &format!("link set {name}x up"));
        }
    }
    assert_eq!(addresses(&cable, &scene, "192.0.2.1"), ["192.0.2.1", "192.0.2.2"]);
}

#[test]
fn hosts_with_ipv6_alone_meet_whether_the_master_has_brackets_or_not() {
    let scene = Scene::elsewhere(PORT);
    let Some(cable) = Cable::new("six") else { return };
    for end in [0, 1] {
        cable.at(end, "address flush dev tpc0");
        cable.at(
            end,
            &format!("address add 2001:db8::{}/64 dev tpc0 nodad", end + 1),
        );
    }
    for master in ["2001:db8::1", "[2001:db8::1]"] {
        assert_eq!(addresses(&cable, &scene, master), ["2001:db8::1", "2001:db8::2"]);
    }
}

//! What a port has counted, and what the kernel has said, before and after.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;
use tp_fabric::wire::verbs::RailEnd;

/// Packets in the sampled time that still count as quiet: what a network says of its own accord.
pub const STRAY: u64 = 8;

/// The counters of a port that say what it carried, by name.
pub fn counters(end: &RailEnd) -> BTreeMap<String, u64> {
    let port = Path::new("/sys/class/infiniband")
        .join(&end.device)
        .join(format!("ports/{}", end.port));
    let wanted = [
        ("hw_counters", "sent_pkts"),
        ("hw_counters", "rcvd_pkts"),
        ("counters", "port_xmit_packets"),
        ("counters", "port_rcv_packets"),
        ("hw_counters", "out_of_sequence"),
        ("hw_counters", "retry_exceeded_err"),
        ("hw_counters", "retry_rnr_exceeded_err"),
        ("hw_counters", "send_err"),
        ("counters", "symbol_error"),
        ("counters", "link_downed"),
    ];
    let read = |(folder, name): &(&str, &str)| {
        let text = fs::read_to_string(port.join(folder).join(name)).ok()?;
        Some(((*name).to_owned(), text.trim().parse().ok()?))
    };
    wanted.iter().filter_map(read).collect()
}

/// How many packets the ports carried in this time; none where no port counts any.
pub fn carried(ends: &[RailEnd], time: Duration) -> Option<u64> {
    let sum = || {
        let all = ends.iter().flat_map(counters).filter(|(name, _)| {
            ["sent_pkts", "rcvd_pkts", "port_xmit_packets", "port_rcv_packets"].contains(&name.as_str())
        });
        all.fold(None, |sum: Option<u64>, (_, value)| {
            Some(sum.unwrap_or(0) + value)
        })
    };
    let before = sum()?;
    std::thread::sleep(time);
    Some(sum()?.saturating_sub(before))
}

/// The kernel's log from now on, as far as it is readable.
pub struct KernelLog(Option<fs::File>);

impl KernelLog {
    /// Passes over what is there.
    pub fn open() -> Self {
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg");
        let mut log = Self(file.ok());
        log.take(&[]);
        log
    }

    /// Whether it can be read.
    pub fn is_readable(&self) -> bool {
        self.0.is_some()
    }

    /// New lines of warnings and errors that name any of `words`.
    pub fn take(&mut self, words: &[&str]) -> Vec<String> {
        let mut lines = Vec::new();
        let Some(file) = &mut self.0 else { return lines };
        let mut record = [0; 8192];
        loop {
            match file.read(&mut record) {
                Ok(0) => return lines,
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    // `priority,sequence,time,flags;message`: the lowest three bits of the priority are the level.
                    let Some((head, message)) = text.split_once(';') else {
                        continue;
                    };
                    let priority: u32 = head
                        .split(',')
                        .next()
                        .and_then(|word| word.parse().ok())
                        .unwrap_or(7);
                    let line = message.lines().next().unwrap_or_default();
                    if priority & 7 <= 4 && words.iter().any(|word| line.contains(word)) {
                        lines.push(line.to_owned());
                    }
                }
                // Records that were overwritten meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => return lines,
            }
        }
    }
}

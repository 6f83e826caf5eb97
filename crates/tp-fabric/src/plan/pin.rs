//! Where the plan thread runs.

use crate::os;
use crate::settings::Pin;

/// Pins the calling thread as asked; gives the CPU it is on now, where it is pinned. A refusal is logged, not an error: the
/// link works anywhere.
pub(super) fn pin(how: Pin, avoid: Option<u32>) -> Option<u32> {
    let cpu = match how {
        Pin::Off => return None,
        Pin::Cpu(cpu) => cpu,
        Pin::Auto => {
            let rated: Vec<(u32, u64)> = os::allowed_cpus()
                .into_iter()
                .filter_map(|cpu| Some((cpu, os::cpu_capacity(cpu)?)))
                .collect();
            fastest(&rated, avoid)?
        }
    };
    match os::pin_to_cpu(cpu) {
        Ok(()) => {
            tracing::info!("the plan thread runs on CPU {cpu}");
            Some(cpu)
        }
        Err(error) => {
            tracing::warn!("failed to pin the plan thread to CPU {cpu}: {error}");
            None
        }
    }
}

/// The fastest CPU but one, where CPUs differ; with equal ones the system's scheduler knows better.
fn fastest(rated: &[(u32, u64)], avoid: Option<u32>) -> Option<u32> {
    let lowest = rated.iter().map(|(_, capacity)| *capacity).min()?;
    let usable = rated.iter().filter(|(cpu, _)| Some(*cpu) != avoid);
    let best = usable.max_by_key(|(cpu, capacity)| (*capacity, std::cmp::Reverse(*cpu)))?;
    (best.1 > lowest).then_some(best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_cpu_is_taken_only_where_cpus_differ() {
        let big_little = [(0, 512), (1, 512), (2, 1024), (3, 1024)];
        assert_eq!(fastest(&big_little, None), Some(2));
        assert_eq!(fastest(&big_little, Some(2)), Some(3));
        assert_eq!(fastest(&[(0, 1024), (1, 1024)], None), None);
        assert_eq!(fastest(&[], None), None);
    }
}

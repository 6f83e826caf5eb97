//! Figures from timed calls.

use std::time::Duration;

/// Median and spread of timed calls, microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Half of the calls took no longer.
    pub median: f64,
    /// A tenth of the calls took no longer.
    pub p10: f64,
    /// Nine tenths of the calls took no longer.
    pub p90: f64,
    /// How many calls were timed.
    pub samples: u64,
}

impl Figures {
    /// The figures of these times; `None` where there are none.
    pub fn of(times: Vec<Duration>) -> Option<Self> {
        Self::of_us(times.into_iter().map(|time| time.as_secs_f64() * 1e6).collect())
    }

    /// The figures of these times in microseconds; `None` where there are none.
    pub fn of_us(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let us = |q: f64| times.get(rank_of(q, times.len())?).copied();
        Some(Self {
            median: us(0.5)?,
            p10: us(0.1)?,
            p90: us(0.9)?,
            samples: times.len() as u64,
        })
    }
}

/// Index of a quantile by the nearest-rank method: the smallest value that at least the share `q` does not exceed.
pub fn rank_of(q: f64, len: usize) -> Option<usize> {
    let last = len.checked_sub(1)?;
    Some(((q * len as f64).ceil() as usize).saturating_sub(1).min(last))
}

/// Bus bandwidth in GB/s (10^9 bytes a second) by the convention of NCCL's tests: an all-reduce of `bytes` counts
/// 2(n−1)/n of them, a gather or reduce-scatter of `bytes` a rank (n−1).
pub fn bus_bandwidth(op: &str, bytes: u64, world: u32, median_us: f64) -> Option<f64> {
    let (bytes, n) = (bytes as f64, f64::from(world));
    let moved = match op {
        "all_reduce" => bytes * 2.0 * (n - 1.0) / n,
        "all_gather" | "reduce_scatter" => bytes * (n - 1.0),
        "broadcast" | "exchange" => bytes,
        _ => return None,
    };
    Some(moved / median_us / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let times = (1..=10).rev().map(Duration::from_micros).collect();
        let figures = Figures::of(times).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(
            near(figures.median, 5.0) && near(figures.p10, 1.0) && near(figures.p90, 9.0),
            "{figures:?}"
        );
        assert_eq!(Figures::of(Vec::new()), None);
        assert_eq!(rank_of(1.0, 3), Some(2));
    }

    #[test]
    fn bandwidth_follows_the_convention() {
        // 1 MB in 1,000 us is 1 GB/s algorithm bandwidth; at two ranks an all-reduce has factor 1, at four 1.5.
        assert_eq!(bus_bandwidth("all_reduce", 1_000_000, 2, 1000.0), Some(1.0));
        assert_eq!(bus_bandwidth("all_reduce", 1_000_000, 4, 1000.0), Some(1.5));
        assert_eq!(bus_bandwidth("all_gather", 1_000_000, 2, 1000.0), Some(1.0));
        assert_eq!(bus_bandwidth("barrier", 1, 2, 1.0), None);
    }
}

//! Signatures of what follows from another failure; tried last, so that the failure itself is named first.

use super::{Sign, Signature};

const fn line(all: &'static [&'static str], any: &'static [&'static str]) -> Sign {
    Sign::Line { all, any }
}

pub(super) const CONSEQUENCES: &[Signature] = &[
    Signature {
        code: "no-exit-event",
        sign: line(&["without an exit event"], &[]),
        cause: "The supervisor of the rank was killed or never started, so nobody could say how the rank \
                ended.",
        remedy: "Look in the kernel log (dmesg) for the out-of-memory killer, and for whoever kills processes on \
                the host; under `run_prefix` the container may have been stopped.",
        source: "field case 103",
        example: "rank 1: the supervisor ended (signal 9) without an exit event",
    },
    Signature {
        code: "step-deadline",
        sign: line(&["still ran at the step's deadline"], &[]),
        cause: "A rank waited for something that never came and nothing ended it, or the step is slower here \
                than its deadline allows.",
        remedy: "Read the last lines of its log: a rank that still made progress needs a longer `step_limit_s` \
                in [cluster], one that stood still says what it waits on.",
        source: "field cases 2, 119, 142",
        example: "rank 1 still ran at the step's deadline of 300 s",
    },
    Signature {
        code: "rank-never-came",
        sign: line(&["rank"], &["never came", "did not come to it"]),
        cause: "The named ranks did not reach rank 0 within the boot deadline.",
        remedy: "Look at the logs of the ranks that are named: they ended early, or they cannot reach rank 0's \
                address.",
        source: "field case 113",
        example: "[0] ERROR: rank 1, 2 never came within 60.0 s",
    },
    Signature {
        code: "peer-silent",
        sign: line(&["no heartbeat for"], &[]),
        cause: "The named rank gave no sign of life although its connection stands: it is stopped, its host is \
                frozen, or the link is cut.",
        remedy: "Look at the named host: is it up, is the process stopped (state T in ps), is the cable in?",
        source: "the fate channel's heartbeats",
        example: "[0] ERROR: rank 1 on b failed in phase `run`: no heartbeat for 3.0 s: it is stopped, cut off or \
                without power",
    },
    Signature {
        code: "peer-lost",
        sign: line(&["went away without a clean stop"], &[]),
        cause: "The named rank ended or was killed while the others were still at work; they left because of \
                it.",
        remedy: "Read the named rank's own log: what ended it stands there, not in this one.",
        source: "field case 112; the fate channel",
        example: "[0] ERROR: rank 1 on b failed in phase `run`: went away without a clean stop (end of stream): \
                it failed, exited or was killed",
    },
];

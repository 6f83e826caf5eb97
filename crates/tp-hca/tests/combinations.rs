//! What every documented form of either variable comes to, alone and together, on one topology; and the pages of
//! `docs/hca.md` that are generated from it. `UPDATE_DOCS=1` writes them, otherwise the test checks that they are
//! current.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot read its own fixtures has failed"
)]

use std::fmt::Write;
use std::path::Path;
use tp_hca::{Document, ErrorCode, Options, PickDocument, WarningCode, pick};

const TF: &str = "TF_TP_ROCE_HCA";
const NCCL: &str = "NCCL_IB_HCA";
const HCAS: &str = "TF_TP_ROCE_HCAS";
const SOFT: &str = "TF_TP_ROCE_SOFT";

/// Two rails (mlx5_0 with rocep1s0f0, mlx5_1 with rocep1s0f1); rank 0 also has mlx5_11, up and reaching nobody, and
/// mlx5_2, down.
const PAIR: &str = "pair";

type Row = (
    &'static str,
    &'static [(u32, &'static str, &'static str)],
    &'static str,
);

/// Topology, variables by rank, and what comes of it: the mode of rank 0 and the number of rails, or the error.
const ROWS: &[Row] = &[
    (PAIR, &[], "auto 2"),
    // TF_TP_ROCE_HCA, every form.
    (PAIR, &[(0, TF, "mlx5_0,mlx5_1")], "TF_TP_ROCE_HCA 2"),
    (PAIR, &[(0, TF, "mlx5_1,mlx5_0")], "TF_TP_ROCE_HCA 2"),
    (PAIR, &[(0, TF, "mlx5_0")], "TF_TP_ROCE_HCA 1"),
    (PAIR, &[(0, TF, "mlx5_0:3,mlx5_1:3")], "TF_TP_ROCE_HCA 2"),
    (PAIR, &[(0, TF, "mlx5_0:3")], "TF_TP_ROCE_HCA 1"),
    (PAIR, &[(0, TF, "mlx5_0:2")], "no-gid"),
    (PAIR, &[(0, TF, "mlx5_0:1")], "disagree"),
    (PAIR, &[(0, TF, "mlx5_0:9")], "no-gid"),
    (PAIR, &[(0, TF, "mlx5_0:3,mlx5_1")], "bad-syntax"),
    (PAIR, &[(0, TF, "mlx5_0,mlx5_1:3")], "bad-syntax"),
    (PAIR, &[(0, TF, "^mlx5_0")], "bad-syntax"),
    (PAIR, &[(0, TF, "=mlx5_0")], "bad-syntax"),
    (PAIR, &[(0, TF, "mlx5_0,,mlx5_1")], "bad-syntax"),
    (PAIR, &[(0, TF, "mlx5_0,")], "bad-syntax"),
    (PAIR, &[(0, TF, "mlx5_0,mlx5_0")], "bad-syntax"),
    (PAIR, &[(0, TF, "mlx5_0:1:3")], "bad-syntax"),
    (PAIR, &[(0, TF, "mlx5_0:x")], "bad-syntax"),
    (PAIR, &[(0, TF, " mlx5_0")], "bad-syntax"),
    (PAIR, &[(0, TF, "mlx5_9")], "unknown-device"),
    (PAIR, &[(0, TF, "mlx5")], "unknown-device"),
    (PAIR, &[(0, TF, "mlx5_2")], "port-down"),
    (PAIR, &[(0, TF, "mlx5_11")], "disagree"),
    (PAIR, &[(0, TF, "mlx5_0,mlx5_11")], "disagree"),
    (PAIR, &[(0, TF, "")], "auto 2"),
    // NCCL_IB_HCA, every form.
    (PAIR, &[(0, NCCL, "=mlx5_0,mlx5_1")], "NCCL_IB_HCA 2"),
    (PAIR, &[(0, NCCL, "=mlx5_0:1,mlx5_1:1")], "NCCL_IB_HCA 2"),
    (PAIR, &[(0, NCCL, "mlx5_0,mlx5_1")], "disagree"),
    (PAIR, &[(0, NCCL, "mlx5_0")], "NCCL_IB_HCA 1"),
    (PAIR, &[(0, NCCL, "mlx5_0:1")], "NCCL_IB_HCA 1"),
    (PAIR, &[(0, NCCL, "mlx5_0:3")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "mlx5")], "disagree"),
    (PAIR, &[(0, NCCL, "^mlx5_11")], "NCCL_IB_HCA 2"),
    (PAIR, &[(0, NCCL, "^=mlx5_11")], "NCCL_IB_HCA 2"),
    (PAIR, &[(0, NCCL, "^mlx5_1")], "NCCL_IB_HCA 1"),
    (PAIR, &[(0, NCCL, "^=mlx5_0")], "disagree"),
    (PAIR, &[(0, NCCL, "^mlx5")], "port-down"),
    (PAIR, &[(0, NCCL, "=^mlx5_0")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "==mlx5_0")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "mlx5_0,=mlx5_1")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "mlx5_0,^mlx5_1")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "=mlx5_0:x")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "=mlx5_0:0")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "=mlx5_0:1:0:2,mlx5_1:1:1:2")], "NCCL_IB_HCA 2"),
    (PAIR, &[(0, NCCL, "=mlx5_0::4")], "NCCL_IB_HCA 1"),
    (PAIR, &[(0, NCCL, "=mlx5_0:1:0:2:5")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "=mlx5_0,,mlx5_1")], "NCCL_IB_HCA 2"),
    (PAIR, &[(0, NCCL, "=mlx5_0, mlx5_1")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "=mlx5_9")], "unknown-device"),
    (PAIR, &[(0, NCCL, "=mlx5_2")], "port-down"),
    (PAIR, &[(0, NCCL, "=mlx5_0,mlx5_2")], "port-down"),
    (PAIR, &[(0, NCCL, "^")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "=")], "bad-syntax"),
    (PAIR, &[(0, NCCL, "")], "auto 2"),
    // Both on one rank.
    (PAIR, &[(0, TF, "mlx5_0"), (0, NCCL, "=mlx5_0")], "both 1"),
    (
        PAIR,
        &[(0, TF, "mlx5_0,mlx5_1"), (0, NCCL, "=mlx5_1,mlx5_0")],
        "both 2",
    ),
    (PAIR, &[(0, TF, "mlx5_0,mlx5_1"), (0, NCCL, "^mlx5_11")], "both 2"),
    (PAIR, &[(0, TF, "mlx5_0"), (0, NCCL, "mlx5_0")], "both 1"),
    (PAIR, &[(0, TF, "mlx5_0"), (0, NCCL, "=mlx5_1")], "mixed-modes"),
    (
        PAIR,
        &[(0, TF, "mlx5_0"), (0, NCCL, "=mlx5_0,mlx5_1")],
        "mixed-modes",
    ),
    (PAIR, &[(0, TF, "mlx5_1"), (0, NCCL, "mlx5_1")], "mixed-modes"),
    (PAIR, &[(0, TF, "mlx5_0:3"), (0, NCCL, "mlx5_0:3")], "bad-syntax"),
    (PAIR, &[(0, TF, "mlx5_0:3"), (0, NCCL, "=mlx5_0:1")], "both 1"),
    (PAIR, &[(0, TF, "mlx5_0"), (0, NCCL, "")], "TF_TP_ROCE_HCA 1"),
    (PAIR, &[(0, TF, ""), (0, NCCL, "=mlx5_0")], "NCCL_IB_HCA 1"),
    // On both ranks.
    (
        PAIR,
        &[(0, TF, "mlx5_0"), (1, TF, "rocep1s0f0")],
        "TF_TP_ROCE_HCA 1",
    ),
    (PAIR, &[(0, TF, "mlx5_0"), (1, TF, "rocep1s0f1")], "disagree"),
    (
        PAIR,
        &[(0, TF, "mlx5_0,mlx5_1"), (1, TF, "rocep1s0f0")],
        "disagree",
    ),
    (
        PAIR,
        &[(0, TF, "mlx5_0"), (1, NCCL, "=rocep1s0f0")],
        "TF_TP_ROCE_HCA 1",
    ),
    (
        PAIR,
        &[(0, NCCL, "=mlx5_0"), (1, NCCL, "=rocep1s0f1")],
        "disagree",
    ),
    (
        PAIR,
        &[(0, NCCL, "=mlx5_0,mlx5_1"), (1, TF, "rocep1s0f0,rocep1s0f1")],
        "NCCL_IB_HCA 2",
    ),
    (PAIR, &[(1, NCCL, "rocep1s0f")], "auto 2"),
    // The other variables.
    (PAIR, &[(0, HCAS, "1")], "auto 1"),
    (PAIR, &[(0, HCAS, "1"), (0, TF, "mlx5_0,mlx5_1")], "bad-syntax"),
    (PAIR, &[(0, HCAS, "1"), (0, NCCL, "=mlx5_0,mlx5_1")], "disagree"),
    (
        PAIR,
        &[(1, HCAS, "1"), (0, TF, "mlx5_0,mlx5_1")],
        "TF_TP_ROCE_HCA 1",
    ),
    (PAIR, &[(0, HCAS, "0")], "bad-syntax"),
    (PAIR, &[(0, SOFT, "yes")], "bad-syntax"),
    (PAIR, &[(0, "NCCL_IB_GID_INDEX", "3")], "auto 2"),
    // Other topologies, from the field's cases.
    ("14-ring-of-three", &[], "auto 3"),
    (
        "14-ring-of-three",
        &[(0, TF, "rocep1s0f0,rocep1s0f1")],
        "TF_TP_ROCE_HCA 3",
    ),
    ("14-ring-of-three", &[(0, TF, "rocep1s0f0")], "disagree"),
    (
        "14-ring-of-three",
        &[(0, NCCL, "=rocep1s0f1,rocep1s0f0")],
        "NCCL_IB_HCA 3",
    ),
    ("16-ring-of-three-host-routes", &[], "auto 3"),
    ("16-ring-of-three-host-routes", &[(1, NCCL, "roce")], "auto 3"),
    ("35-eight-rails-one-switch", &[], "auto 8"),
    ("35-eight-rails-one-switch", &[(0, HCAS, "2")], "auto 2"),
    (
        "35-eight-rails-one-switch",
        &[(0, NCCL, "mlx5"), (1, TF, "mlx5_0,mlx5_1")],
        "disagree",
    ),
    (
        "46-link-layers-never-mix",
        &[(0, NCCL, "=mlx5_2")],
        "NCCL_IB_HCA 1",
    ),
    (
        "46-link-layers-never-mix",
        &[(0, TF, "mlx5_3")],
        "wrong-link-layer",
    ),
    ("62-ula-only", &[(0, TF, "bnxt_re0:3")], "TF_TP_ROCE_HCA 1"),
    ("73-soft-device-refused", &[(0, TF, "rxe_0")], "soft-device"),
    ("73-soft-device-allowed", &[(0, TF, "rxe_0")], "TF_TP_ROCE_HCA 1"),
];

fn topology(name: &str) -> Document {
    let file = if name == PAIR {
        "../combinations-pair.toml".to_owned()
    } else {
        format!("{name}.toml")
    };
    Document::load(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/cases")
            .join(file),
    )
    .unwrap()
}

fn run((name, variables, _): &Row) -> PickDocument {
    let mut document = topology(name);
    for (rank, variable, value) in *variables {
        document.rank_mut(*rank).unwrap().set_env(variable, Some(value));
    }
    pick(&document, &Options::default())
}

fn outcome(got: &PickDocument) -> String {
    match &got.error {
        Some(error) => error.code.to_string(),
        None => {
            let rails: usize = got.ranks.iter().map(|rank| rank.rails.len()).sum();
            let mode = serde_json::to_value(got.ranks[0].mode).unwrap();
            format!("{} {}", mode.as_str().unwrap(), rails / 2)
        }
    }
}

#[test]
fn every_combination_comes_out_as_written() {
    assert!(ROWS.len() >= 48);
    let mut wrong = String::new();
    for row in ROWS {
        let got = run(row);
        if outcome(&got) != row.2 {
            writeln!(wrong, "{row:?}: {} ({:?})", outcome(&got), got.error).unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

fn combinations() -> String {
    let mut out =
        String::from("| # | topology | rank 0 | rank 1 | outcome | warnings |\n|---|---|---|---|---|---|\n");
    for (number, row) in ROWS.iter().enumerate() {
        let got = run(row);
        let variables = |wanted: u32| {
            let set: Vec<String> = row
                .1
                .iter()
                .filter(|(rank, _, _)| *rank == wanted)
                .map(|(_, variable, value)| format!("`{variable}={value}`"))
                .collect();
            if set.is_empty() {
                "–".to_owned()
            } else {
                set.join(" ")
            }
        };
        let mut codes: Vec<&str> = got
            .ranks
            .iter()
            .flat_map(|rank| rank.warnings.iter().map(|warning| warning.code))
            .filter(|code| !matches!(code, WarningCode::Unprobed))
            .map(WarningCode::as_str)
            .collect();
        codes.sort_unstable();
        codes.dedup();
        let result = match &got.error {
            Some(error) => format!("`{}`, exit {}", error.code, error.exit_code()),
            None => {
                let count: usize = got.ranks.iter().map(|rank| rank.rails.len()).sum();
                let rails = if count == 2 {
                    "1 rail".to_owned()
                } else {
                    format!("{} rails", count / 2)
                };
                let mode = serde_json::to_value(got.ranks[0].mode).unwrap();
                format!("{rails}, rank 0 {}", mode.as_str().unwrap())
            }
        };
        writeln!(
            out,
            "| {} | {} | {} | {} | {result} | {} |",
            number + 1,
            row.0.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-'),
            variables(0),
            variables(1),
            codes.join(", ")
        )
        .unwrap();
    }
    out
}

fn codes() -> String {
    let mut out = String::from("| error | exit | meaning |\n|---|---|---|\n");
    for code in ErrorCode::ALL {
        writeln!(out, "| `{code}` | {} | {} |", code.exit_code(), code.meaning()).unwrap();
    }
    out.push_str("\n| warning | meaning |\n|---|---|\n");
    for code in WarningCode::ALL {
        writeln!(out, "| `{code}` | {} |", code.meaning()).unwrap();
    }
    out
}

/// The page with the text between two markers replaced.
fn replaced(page: &str, name: &str, text: &str) -> String {
    let (begin, end) = (
        format!("<!-- {name}: generated -->\n"),
        format!("<!-- {name}: end -->"),
    );
    let (before, rest) = page.split_once(&begin).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    format!("{before}{begin}{text}{end}{after}")
}

#[test]
fn the_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hca.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let wanted = replaced(
        &replaced(&page, "codes", &codes()),
        "combinations",
        &combinations(),
    );
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    } else {
        assert!(
            page == wanted,
            "docs/hca.md is stale: run `UPDATE_DOCS=1 cargo test -p tp-hca --test combinations`"
        );
    }
}

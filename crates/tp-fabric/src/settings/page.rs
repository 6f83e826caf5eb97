//! `docs/settings.md`, printed from the table.

use super::spec::{Reader, Spec};
use super::table::{RETIRED, TABLE};
use std::fmt::Write;

const READERS: [Reader; 7] = [
    Reader::Bootstrap,
    Reader::Fate,
    Reader::Plan,
    Reader::Backend,
    Reader::Wire,
    Reader::Pick,
    Reader::Nccl,
];

const HEAD: &str = "# Settings

Printed from the one table in `crates/tp-fabric/src/settings/table.rs`; a test keeps this page current
(`UPDATE_PAGES=1 cargo test -p tp-fabric --test control_settings` rewrites it). `tf-tp-test explain` shows the value in force and
who set it.

A command-line option wins over the orchestrator's settings, these over the environment, and that over the launcher.
An empty variable counts as unset, with a warning. Numbers are decimal. A `TF_TP_*` name that is not here does nothing and
is warned about. **Same everywhere** marks what all ranks must share; they refuse to start otherwise.

Rank, world and master may also come from the innermost launcher that started the rank: torchrun (`RANK`, `WORLD_SIZE`,
`MASTER_ADDR`), then Open MPI (`OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`), PMI (`PMI_RANK`, `PMI_SIZE`), Slurm
(`SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, and on several nodes the first host of `SLURM_STEP_NODELIST`). Slurm counts only inside a
step, where `SLURM_STEP_ID` is set: below `srun`. A batch script and a shell of `salloc` have `SLURM_PROCID` too and are no
ranks. A variable below that contradicts the launcher is refused; an option wins over it. Ranks that `tp-orchestrate` starts have
their place from it alone.
";

/// The whole page.
pub fn page() -> String {
    let mut out = HEAD.to_owned();
    for reader in READERS {
        let rows: Vec<_> = TABLE.iter().filter(|spec| spec.reader == reader).collect();
        if rows.is_empty() {
            continue;
        }
        let name = reader.name();
        let title =
            name.get(..1).map(str::to_uppercase).unwrap_or_default() + name.get(1..).unwrap_or_default();
        let _ = write!(
            out,
            "\n## {title}\n\n| variable | takes | default | meaning |\n|---|---|---|---|\n"
        );
        for spec in rows {
            row(&mut out, spec);
        }
    }
    out.push_str("\n## Names of earlier tools\n\n| variable | here |\n|---|---|\n");
    for (name, instead) in RETIRED {
        let _ = writeln!(out, "| `{name}` | {instead} |");
    }
    out
}

fn row(out: &mut String, spec: &Spec) {
    let option = if spec.option.is_empty() {
        String::new()
    } else {
        format!("<br>`--{}`", spec.option)
    };
    let unit = if spec.unit.is_empty() {
        String::new()
    } else {
        format!(" {}", spec.unit)
    };
    let default = if spec.default.is_empty() {
        format!("unset: {}", spec.unset)
    } else {
        format!("`{}`{unit}", spec.default)
    };
    let same = if spec.agree { " **Same everywhere.**" } else { "" };
    let _ = writeln!(
        out,
        "| `{}`{option} | {} | {default} | {}{same} |",
        spec.name, spec.kind, spec.meaning
    );
}

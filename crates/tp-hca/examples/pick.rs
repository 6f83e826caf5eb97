//! Picks from facts files, one a host in rank order (or one file with all ranks), and prints the table.
//!
//! `cargo run -p tp-hca --example pick -- hosts/facts/twin-a.toml hosts/facts/twin-b.toml`

use tp_hca::{Document, Options, PickDocument, pick, table};

fn main() -> std::process::ExitCode {
    let paths: Vec<std::path::PathBuf> = std::env::args_os().skip(1).map(Into::into).collect();
    let document = match &paths[..] {
        [one] => Document::load(one),
        many => Document::from_host_files(many),
    };
    let picked = match document {
        Ok(document) => pick(&document, &Options::default()),
        Err(error) => PickDocument::refused(error.into()),
    };
    print!("{}", table(&picked));
    picked.exit_code().into()
}

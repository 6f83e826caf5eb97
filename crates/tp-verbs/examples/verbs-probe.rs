//! Prints which libibverbs this host would use, what it offers, and what would make RDMA usable.

use std::path::Path;

fn main() -> std::process::ExitCode {
    let found = tp_verbs::probe(&tp_verbs::Search::from_env(), Path::new("/"));
    if let Some(path) = &found.path {
        println!("{}", path.display());
    }
    println!("{}", found.detail());
    match found.fix() {
        Some(fix) => {
            println!("to mend: {fix}");
            3.into()
        }
        None => std::process::ExitCode::SUCCESS,
    }
}

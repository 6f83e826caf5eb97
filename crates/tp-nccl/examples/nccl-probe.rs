//! Prints which libnccl this host would use, and what was tried before it.

fn main() -> std::process::ExitCode {
    let probe = tp_nccl::probe(&tp_nccl::Search::from_env());
    match &probe.path {
        Some(path) => println!("{}: {}", path.display(), probe.detail()),
        None => println!("{}", probe.detail()),
    }
    if probe.path.is_some() {
        std::process::ExitCode::SUCCESS
    } else {
        3.into()
    }
}

//! Thin entry point; the logic is in the library.

fn main() -> std::process::ExitCode {
    tp_orchestrate::cli::entry(std::env::args_os()).into()
}

//! Thin entry point; the logic is in the library.

fn main() -> std::process::ExitCode {
    tf_tp_test::entry(std::env::args_os()).into()
}

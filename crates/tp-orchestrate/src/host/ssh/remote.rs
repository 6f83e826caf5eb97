//! What is said to a host's shell: quoting, the wrapper that tells a command's output from the noise of profiles, and the
//! small scripts, which keep to POSIX and to tools that every Linux has.

use std::fmt::Write;

/// Stands in front of a command's own output. What comes before it is a banner or a profile's noise.
pub const BEGIN: &str = "tp-bringup:begin";

/// A word for the user's shell, whichever it is: only quotes that sh, bash, zsh, fish and csh read alike.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let mut out = String::from("'");
    for c in word.chars() {
        match c {
            // Outside of quotes a backslash makes either of them plain in every shell.
            '\'' | '\\' | '!' => {
                let _ = write!(out, "'\\{c}'");
            }
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

/// In front of the process id on standard error, see [`marked`].
pub const PID: &str = "tp-bringup:pid ";

/// A command line for the user's shell that becomes `argv`. [`BEGIN`] stands in front of its output, [`PID`] and the
/// process id in front of what it says on standard error.
pub fn marked(argv: &[String]) -> String {
    line(&format!("echo {BEGIN}; echo \"{PID}$$\" >&2; exec \"$@\""), argv)
}

/// The same without the mark on standard output, which belongs to events alone.
pub fn with_pid(argv: &[String]) -> String {
    line(&format!("echo \"{PID}$$\" >&2; exec \"$@\""), argv)
}

/// A script of several lines with the marks of [`marked`].
pub fn marked_script(script: &str) -> String {
    format!("echo {BEGIN}; echo \"{PID}$$\" >&2\n{script}\n")
}

/// A command line that reads a script from standard input and runs it with arguments.
pub fn script_line(arguments: &[String]) -> String {
    let mut out = String::from("exec sh -s --");
    for argument in arguments {
        let _ = write!(out, " {}", quoted(argument));
    }
    out
}

/// A command line that runs a script of one line with arguments; standard input stays free.
pub fn line(script: &str, arguments: &[String]) -> String {
    let mut out = format!("exec sh -c {} sh", quoted(script));
    for argument in arguments {
        let _ = write!(out, " {}", quoted(argument));
    }
    out
}

/// What follows [`BEGIN`], and what stood in front of it; all of it is noise where the marker never came.
pub fn after_begin(text: &str) -> (String, String) {
    let marker = format!("{BEGIN}\n");
    match text.split_once(&marker) {
        Some((noise, own)) => (own.to_owned(), noise.to_owned()),
        None => (String::new(), text.to_owned()),
    }
}

/// What follows the line with the process id, and the id; where there is none, everything is the command's.
pub fn after_pid(text: &str) -> (String, Option<u32>) {
    let mut rest = text;
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        if let Some(pid) = line.strip_prefix(PID) {
            return (after.to_owned(), pid.trim().parse().ok());
        }
        rest = after;
    }
    (text.to_owned(), None)
}

/// `KEY=VALUE` lines of a script's answer.
pub fn value<'a>(answer: &'a str, key: &str) -> Option<&'a str> {
    answer
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        .map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn every_word_arrives_as_it_was() {
        let words = [
            "",
            "plain",
            "two words",
            "it's",
            "a\\b",
            "$HOME `x` \"q\"",
            "!",
            "*",
            "ä\n2",
        ];
        let argv: Vec<String> = ["printf", "%s|"]
            .iter()
            .chain(&words)
            .map(|w| (*w).to_owned())
            .collect();
        for shell in ["sh", "bash"] {
            let output = Command::new(shell).arg("-c").arg(marked(&argv)).output().unwrap();
            let (own, noise) = after_begin(&String::from_utf8(output.stdout).unwrap());
            assert_eq!(own, words.map(|w| format!("{w}|")).concat(), "{shell}");
            assert_eq!(noise, "");
        }
    }

    #[test]
    fn noise_is_told_from_the_answer() {
        let (own, noise) = after_begin("Welcome!\ntp-bringup:begin\nid=7\r\n");
        assert_eq!((value(&own, "id"), noise.as_str()), (Some("7"), "Welcome!\n"));
        assert_eq!(after_begin("no shell here").0, "");
    }
}

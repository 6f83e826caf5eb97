//! The parent: starts the ranks, carries their meetings, and ends with the worst of their exit codes.

use crate::Options;
use crate::pipes::{PREFIX, RANK_VARIABLE};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A rank's line of a meeting, or its end.
type Word = (usize, Option<String>);

pub(crate) fn run(options: &Options) -> ExitCode {
    let (sender, receiver) = channel();
    let mut children = Vec::new();
    for rank in 0..options.ranks as usize {
        match start(rank, &sender) {
            Ok(child) => children.push(child),
            Err(error) => {
                eprintln!("gpu_exchange: failed to start rank {rank}: {error}");
                for mut child in children {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                return ExitCode::from(3);
            }
        }
    }
    drop(sender);
    let inputs = children.iter_mut().map(|child| child.stdin.take()).collect();
    carry(&receiver, inputs);
    let mut worst = 0;
    for (rank, mut child) in children.into_iter().enumerate() {
        match child.wait() {
            Ok(status) => {
                if !status.success() {
                    eprintln!("gpu_exchange: rank {rank}: {status}");
                }
                worst = worst.max(status.code().map_or(1, |code| code.clamp(0, 255) as u8));
            }
            Err(error) => {
                eprintln!("gpu_exchange: rank {rank}: {error}");
                worst = worst.max(1);
            }
        }
    }
    ExitCode::from(worst)
}

fn start(rank: usize, sender: &Sender<Word>) -> std::io::Result<Child> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(RANK_VARIABLE, rank.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let sender = sender.clone();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                match line.strip_prefix(PREFIX) {
                    Some(word) => {
                        if sender.send((rank, Some(word.to_owned()))).is_err() {
                            return;
                        }
                    }
                    None => println!("{line}"),
                }
            }
            let _ = sender.send((rank, None));
        });
    }
    Ok(child)
}

/// Answers each meeting once all ranks are in it. When one rank leaves, or calls differ, the others' inputs end.
fn carry(words: &Receiver<Word>, mut inputs: Vec<Option<ChildStdin>>) {
    let mut given: Vec<Option<String>> = vec![None; inputs.len()];
    let mut gone = 0;
    for (rank, word) in words {
        let Some(word) = word else {
            gone += 1;
            inputs.iter_mut().for_each(|input| *input = None);
            if gone == given.len() {
                return;
            }
            continue;
        };
        given[rank] = Some(word);
        let Some(all) = given.iter().cloned().collect::<Option<Vec<_>>>() else {
            continue;
        };
        given.iter_mut().for_each(|slot| *slot = None);
        let split: Vec<(&str, &str)> = all.iter().filter_map(|word| word.split_once(' ')).collect();
        if split.iter().any(|(op, _)| *op != split[0].0) {
            let ops: Vec<&str> = split.iter().map(|(op, _)| *op).collect();
            eprintln!("gpu_exchange: ranks are out of step: {}", ops.join(", "));
            inputs.iter_mut().for_each(|input| *input = None);
            continue;
        }
        let answer: Vec<&str> = split.iter().map(|(_, bytes)| *bytes).collect();
        for input in inputs.iter_mut() {
            if let Some(pipe) = input
                && writeln!(pipe, "{}", answer.join(" "))
                    .and_then(|()| pipe.flush())
                    .is_err()
            {
                *input = None;
            }
        }
    }
}

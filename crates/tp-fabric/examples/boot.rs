//! How long ranks take to meet, prove the secret and agree when all begin at the same instant, as threads of one process or as
//! processes; the start of threads and processes and the hash of the executable are not in it.
//!
//! `boot --threads 2,64,512 --processes 2,64 --runs 10` prints one JSON object a line for each: `kind`, `world`, `runs`,
//! `median_ms`, `worst_ms`, from the common beginning to the end of the last rank. `scripts/bench bootstrap` runs it.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tp_fabric::bootstrap::{BootConfig, BootError, Bootstrap};
use tp_fabric::secret::Secret;
use tp_fabric::types::{Rank, World};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (mut kinds, mut runs, mut child) = (Vec::new(), 10, None);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--threads" | "--processes" => kinds.push((name, numbers(&value)?)),
            "--runs" => runs = value.parse()?,
            "--child" => child = Some(numbers(&value)?),
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    if let Some(child) = child {
        return play(&child);
    }
    for (kind, worlds) in kinds {
        for world in worlds {
            let one = if kind == "--threads" { threads } else { processes };
            let mut times = (0..runs).map(|_| one(world)).collect::<Result<Vec<f64>>>()?;
            times.sort_by(f64::total_cmp);
            let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
            println!(
                "{{\"kind\": \"{}\", \"world\": {world}, \"runs\": {runs}, \"median_ms\": {median:.3}, \"worst_ms\": {worst:.3}}}",
                kind.trim_start_matches("--")
            );
        }
    }
    Ok(())
}

fn numbers(text: &str) -> Result<Vec<u32>> {
    Ok(text
        .split(',')
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn config(rank: u32, world: u32, port: u16) -> Result<BootConfig> {
    Ok(BootConfig {
        rank: Rank(rank),
        world: World(world),
        master: "127.0.0.1".to_owned(),
        port,
        timeout: Duration::from_secs(60),
        secret: Some(Secret::from_text("a secret for measurements")?),
        insecure: false,
        session: "bench".to_owned(),
        host: "here".to_owned(),
        listener: None,
    })
}

/// About as many fields as a session agrees on.
fn fields() -> Vec<(String, String)> {
    (0..24)
        .map(|n| (format!("SETTING_{n}"), "a value of usual length".to_owned()))
        .collect()
}

fn meet(config: BootConfig, fields: &[(String, String)]) -> std::result::Result<Bootstrap, BootError> {
    let mut boot = Bootstrap::connect(config)?;
    boot.agree("agree", fields)?;
    Ok(boot)
}

/// Milliseconds until all ranks have agreed.
fn threads(world: u32) -> Result<f64> {
    let (port, fields) = (free_port()?, fields());
    let ready = Barrier::new(world as usize + 1);
    std::thread::scope(|scope| {
        let rank = |rank: u32| -> Result<(Instant, Bootstrap)> {
            let config = config(rank, world, port)?;
            ready.wait();
            let boot = meet(config, &fields)?;
            // All stay until the last has read its answer.
            Ok((Instant::now(), boot))
        };
        let ranks: Vec<_> = (0..world)
            .map(|number| scope.spawn(move || rank(number)))
            .collect();
        ready.wait();
        let began = Instant::now();
        let mut last = began;
        let mut all = Vec::new();
        for rank in ranks {
            let (end, boot) = rank.join().map_err(|_| "a rank panicked")??;
            last = last.max(end);
            all.push(boot);
        }
        Ok((last - began).as_secs_f64() * 1e3)
    })
}

/// One rank as a process: says that it is ready, waits for the word, says how long it took.
fn play(child: &[u32]) -> Result<()> {
    let [rank, world, port] = *child else {
        return Err("--child wants rank, world and port".into());
    };
    let (config, fields) = (config(rank, world, u16::try_from(port)?)?, fields());
    println!("ready");
    let mut word = String::new();
    io::stdin().read_line(&mut word)?;
    let began = Instant::now();
    let boot = meet(config, &fields)?;
    println!("{}", began.elapsed().as_secs_f64() * 1e3);
    // Until the parent has heard of all.
    io::stdin().read_line(&mut word)?;
    drop(boot);
    Ok(())
}

fn processes(world: u32) -> Result<f64> {
    let port = free_port()?;
    let mut children = Vec::new();
    for rank in 0..world {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--child", &format!("{rank},{world},{port}")]);
        children.push(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    }
    let result = run(&mut children);
    for mut child in children {
        drop(child.stdin.take());
        if result.is_err() {
            child.kill()?;
        }
        child.wait()?;
    }
    result
}

/// From the first word to begin until the last rank has agreed.
fn run(children: &mut [Child]) -> Result<f64> {
    let mut outputs = Vec::new();
    for child in children.iter_mut() {
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        outputs.push(output);
    }
    let mut begun = Vec::new();
    for child in children.iter_mut() {
        child.stdin.as_mut().ok_or("no input")?.write_all(b"go\n")?;
        begun.push(Instant::now());
    }
    let mut last: f64 = 0.0;
    for (output, at) in outputs.iter_mut().zip(&begun) {
        let mut line = String::new();
        output.read_line(&mut line)?;
        // How long after the first word this one came, and what the rank needed from there.
        last = last.max((*at - begun[0]).as_secs_f64() * 1e3 + line.trim().parse::<f64>()?);
    }
    Ok(last)
}

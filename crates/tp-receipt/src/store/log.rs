//! The log of one rank in one step: redacted line by line, never longer than its limit, its last lines remembered.

use super::error::{StoreError, io};
use crate::redact::Redactor;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A longer line is cut into pieces, bytes.
const LINE_MAX: usize = 64 << 10;
/// The longest line that is kept for the receipt, characters; and the bytes of it that are looked at for names, so many
/// more that none is cut at the end of what is shown.
const TAIL_WIDTH: usize = 400;
const TAIL_BYTES: usize = 8 << 10;
/// Of the limit, the part that is kept for the end of the log.
const END_SHARE: u64 = 8;

pub(super) struct LogFile {
    /// Relative to the receipt.
    pub name: String,
    path: PathBuf,
    file: File,
    written: u64,
    hasher: Sha256,
    head_max: u64,
    /// The newest lines once the head is full, as they came, and their bytes: of an endless log nearly all lines go from
    /// here, and those cost nothing else.
    end: VecDeque<Vec<u8>>,
    end_bytes: u64,
    end_max: u64,
    left_out: u64,
    partial: Vec<u8>,
    odd_bytes: u64,
    tail: VecDeque<Vec<u8>>,
    tail_lines: usize,
}

impl LogFile {
    pub fn create(dir: &Path, name: String, limit: u64, tail_lines: usize) -> Result<Self, StoreError> {
        let path = dir.join(&name);
        let create = || OpenOptions::new().create_new(true).append(true).open(&path);
        let file = match (create(), path.parent()) {
            // Of all ranks only the first finds no directory.
            (Err(e), Some(parent)) if e.kind() == ErrorKind::NotFound => {
                std::fs::create_dir_all(parent).map_err(io("create", parent))?;
                create()
            }
            (file, _) => file,
        };
        let file = file.map_err(io("create", &path))?;
        Ok(Self {
            name,
            path,
            file,
            written: 0,
            hasher: Sha256::new(),
            head_max: limit - limit / END_SHARE,
            end: VecDeque::new(),
            end_bytes: 0,
            end_max: limit / END_SHARE,
            left_out: 0,
            partial: Vec::new(),
            odd_bytes: 0,
            tail: VecDeque::new(),
            tail_lines,
        })
    }

    /// Takes bytes as they come; whole lines are written.
    pub fn push(&mut self, mut bytes: &[u8], redactor: &Redactor) -> Result<(), StoreError> {
        let mut out = String::new();
        while !bytes.is_empty() {
            let room = LINE_MAX - self.partial.len();
            let line = bytes.iter().take(room).position(|b| *b == b'\n');
            let take = line.map_or(room.min(bytes.len()), |at| at + 1);
            self.partial.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if line.is_some() || self.partial.len() >= LINE_MAX {
                self.whole_line(redactor, &mut out);
            }
        }
        self.write(&out)
    }

    fn whole_line(&mut self, redactor: &Redactor, out: &mut String) {
        let mut bytes = std::mem::take(&mut self.partial);
        while matches!(bytes.last(), Some(b'\n' | b'\r')) {
            bytes.pop();
        }
        if self.tail_lines > 0 {
            // The oldest line's memory serves the newest.
            let full = self.tail.len() >= self.tail_lines;
            let oldest = if full { self.tail.pop_front() } else { None };
            let mut line = oldest.unwrap_or_default();
            line.clear();
            line.extend_from_slice(&bytes[..bytes.len().min(TAIL_BYTES)]);
            self.tail.push_back(line);
        }
        let size = bytes.len() as u64 + 1;
        let full = self.end_bytes > 0 || self.left_out > 0;
        if !full {
            let (line, odd) = readable(&bytes, redactor);
            if self.written + ((out.len() + line.len()) as u64) < self.head_max {
                self.odd_bytes += odd;
                out.push_str(&line);
                out.push('\n');
                self.partial = bytes;
                self.partial.clear();
                return;
            }
            let limit = self.head_max + self.end_max;
            out.push_str(&note(
                redactor,
                format_args!(
                    "this log reached its limit of {limit} bytes; of what follows only the end is kept"
                ),
            ));
        }
        self.end_bytes += size;
        self.end.push_back(bytes);
        while self.end_bytes > self.end_max
            && let Some(oldest) = self.end.pop_front()
        {
            self.end_bytes -= oldest.len() as u64 + 1;
            self.left_out += oldest.len() as u64 + 1;
            self.partial = oldest;
            self.partial.clear();
        }
    }

    /// The newest lines as they are to be shown, no more than there is room for; what else there was is left out.
    fn last_lines(&mut self, redactor: &Redactor) -> VecDeque<String> {
        let mut shown = VecDeque::new();
        let mut room = self.end_max;
        while let Some(bytes) = self.end.pop_back() {
            let (line, odd) = readable(&bytes, redactor);
            let size = line.len() as u64 + 1;
            if size > room {
                self.end.push_back(bytes);
                break;
            }
            room -= size;
            self.odd_bytes += odd;
            shown.push_front(line);
        }
        self.left_out += self
            .end
            .drain(..)
            .map(|bytes| bytes.len() as u64 + 1)
            .sum::<u64>();
        shown
    }

    fn write(&mut self, text: &str) -> Result<(), StoreError> {
        if text.is_empty() {
            return Ok(());
        }
        if let Err(e) = self.file.write_all(text.as_bytes()) {
            // Whole lines only, so that the log ends where it says.
            let _ = self.file.set_len(self.written);
            return Err(io("write", &self.path)(e));
        }
        self.written += text.len() as u64;
        self.hasher.update(text.as_bytes());
        Ok(())
    }

    /// The last lines so far.
    pub fn tail(&self, redactor: &Redactor) -> Vec<String> {
        let shown = |bytes: &Vec<u8>| readable(bytes, redactor).0.chars().take(TAIL_WIDTH).collect();
        self.tail.iter().map(shown).collect()
    }

    /// Writes what is left; gives the file's name, the hash of the whole of it and, where it is wanted, its last lines.
    pub fn close(
        mut self,
        redactor: &Redactor,
        sync: bool,
        with_tail: bool,
    ) -> Result<(String, String, Vec<String>), StoreError> {
        let mut out = String::new();
        if !self.partial.is_empty() {
            self.whole_line(redactor, &mut out);
        }
        let last = self.last_lines(redactor);
        if self.left_out > 0 {
            out.push_str(&note(
                redactor,
                format_args!("{} bytes were left out", self.left_out),
            ));
        }
        for line in last {
            out.push_str(&line);
            out.push('\n');
        }
        if self.odd_bytes > 0 {
            out.push_str(&note(
                redactor,
                format_args!(
                    "{} bytes of this log were not UTF-8; they are shown as \\xNN",
                    self.odd_bytes
                ),
            ));
        }
        self.write(&out)?;
        if sync {
            self.file.sync_data().map_err(io("sync", &self.path))?;
        }
        let hash = hex::encode(self.hasher.clone().finalize());
        let tail = if with_tail {
            self.tail(redactor)
        } else {
            Vec::new()
        };
        Ok((self.name, hash, tail))
    }
}

/// A line of ours within a log. Redacted too: a host may have the name of any word.
fn note(redactor: &Redactor, text: std::fmt::Arguments<'_>) -> String {
    redactor.line(&format!("[tp-receipt: {text}]\n"))
}

/// Text of any bytes, redacted: what is not UTF-8, and control characters that could mislead a terminal, as `\xNN`. Also
/// how many bytes were not UTF-8.
fn readable(bytes: &[u8], redactor: &Redactor) -> (String, u64) {
    let mut out = String::with_capacity(bytes.len());
    let mut odd = 0;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\t' => out.push(c),
                c if c.is_control() && c.is_ascii() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
            odd += 1;
        }
    }
    (redactor.line(&out), odd)
}

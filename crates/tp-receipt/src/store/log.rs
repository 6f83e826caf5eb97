//! The log of one rank in one step: redacted line by line, never longer than its limit, its last lines remembered.

use super::error::{StoreError, io};
use super::files;
use crate::redact::Redactor;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A longer line is cut into pieces, bytes.
const LINE_MAX: usize = 64 << 10;
/// The longest line that is kept for the receipt, characters.
const TAIL_WIDTH: usize = 400;
/// Of the limit, the part that is kept for the end of the log.
const END_SHARE: u64 = 8;

pub(super) struct LogFile {
    /// Relative to the receipt.
    pub name: String,
    path: PathBuf,
    file: File,
    written: u64,
    head_max: u64,
    /// The newest lines once the head is full, and their bytes.
    end: VecDeque<String>,
    end_bytes: u64,
    end_max: u64,
    left_out: u64,
    partial: Vec<u8>,
    odd_bytes: u64,
    tail: VecDeque<String>,
    tail_lines: usize,
}

impl LogFile {
    pub fn create(dir: &Path, name: String, limit: u64, tail_lines: usize) -> Result<Self, StoreError> {
        let path = dir.join(&name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(io("create", parent))?;
        }
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(&path)
            .map_err(io("create", &path))?;
        Ok(Self {
            name,
            path,
            file,
            written: 0,
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
        let line = redactor.line(&self.readable(&bytes));
        if self.tail_lines > 0 {
            if self.tail.len() == self.tail_lines {
                self.tail.pop_front();
            }
            self.tail.push_back(line.chars().take(TAIL_WIDTH).collect());
        }
        let size = line.len() as u64 + 1;
        let full = self.end_bytes > 0 || self.left_out > 0;
        if !full && self.written + out.len() as u64 + size <= self.head_max {
            out.push_str(&line);
            out.push('\n');
            return;
        }
        if !full {
            let limit = self.head_max + self.end_max;
            out.push_str(&format!(
                "[tp-receipt: this log reached its limit of {limit} bytes; of what follows only the end is kept]\n"
            ));
        }
        self.end_bytes += size;
        self.end.push_back(line);
        while self.end_bytes > self.end_max
            && let Some(oldest) = self.end.pop_front()
        {
            self.end_bytes -= oldest.len() as u64 + 1;
            self.left_out += oldest.len() as u64 + 1;
        }
    }

    /// Text of any bytes: what is not UTF-8, and control characters that could mislead a terminal, as `\xNN`.
    fn readable(&mut self, bytes: &[u8]) -> String {
        let mut out = String::with_capacity(bytes.len());
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
                self.odd_bytes += 1;
            }
        }
        out
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
        Ok(())
    }

    /// The last lines so far.
    pub fn tail(&self) -> Vec<String> {
        self.tail.iter().cloned().collect()
    }

    /// Writes what is left and gives the hash of the whole file.
    pub fn close(
        mut self,
        redactor: &Redactor,
        sync: bool,
    ) -> Result<(String, String, Vec<String>), StoreError> {
        let mut out = String::new();
        if !self.partial.is_empty() {
            self.whole_line(redactor, &mut out);
        }
        if self.left_out > 0 {
            out.push_str(&format!("[tp-receipt: {} bytes left out here]\n", self.left_out));
        }
        for line in std::mem::take(&mut self.end) {
            out.push_str(&line);
            out.push('\n');
        }
        if self.odd_bytes > 0 {
            out.push_str(&format!(
                "[tp-receipt: {} bytes of this log were not UTF-8; they are shown as \\xNN]\n",
                self.odd_bytes
            ));
        }
        self.write(&out)?;
        if sync {
            self.file.sync_data().map_err(io("sync", &self.path))?;
        }
        let (hash, _) = files::sha256_of(&self.path, None).map_err(io("read", &self.path))?;
        Ok((self.name, hash, self.tail.into()))
    }
}

//! Produces a tar archive of a directory while it is read, without storing it in memory or on disk.
//!
//! ```text
//! header  512 bytes: name 100, mode 8, uid 8, gid 8, size 12, mtime 12, checksum 8, type 1, link name 100,
//!         "ustar\0" "00", …
//! content, up to a multiple of 512; two empty blocks at the end
//! ```
//!
//! Sizes from 8 GiB are in base 256, and names from 100 bytes are in an entry of their own, both like GNU tar.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const BLOCK: usize = 512;
const NAME_BYTES: usize = 100;
const CHUNK: usize = 64 * 1024;
const LONG_NAME: u8 = b'L';
const FILE: u8 = b'0';
const DIRECTORY: u8 = b'5';

/// Passes the archive of `directory` to `take` in pieces. `take` returns `false` to stop.
pub fn write(directory: &Path, take: &mut dyn FnMut(Vec<u8>) -> bool) -> io::Result<()> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if add(directory, &name, take)? {
        take(vec![0; 2 * BLOCK]);
    }
    Ok(())
}

/// Returns the size of the archive that `write` produces, if the directory does not change.
pub fn length(directory: &Path) -> io::Result<u64> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(measure(directory, &name)? + 2 * BLOCK as u64)
}

fn measure(path: &Path, name: &str) -> io::Result<u64> {
    let there = fs::symlink_metadata(path)?;
    if there.is_file() {
        let content = there.len().next_multiple_of(BLOCK as u64);
        return Ok(headers(name, FILE, there.len(), &there).len() as u64 + content);
    }
    if !there.is_dir() {
        return Ok(0);
    }
    let mut bytes = headers(&format!("{name}/"), DIRECTORY, 0, &there).len() as u64;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        bytes += measure(
            &entry.path(),
            &format!("{name}/{}", entry.file_name().to_string_lossy()),
        )?;
    }
    Ok(bytes)
}

/// Returns `false` if `take` has stopped.
fn add(path: &Path, name: &str, take: &mut dyn FnMut(Vec<u8>) -> bool) -> io::Result<bool> {
    let there = fs::symlink_metadata(path)?;
    if there.is_file() {
        return Ok(take(headers(name, FILE, there.len(), &there)) && contents(path, there.len(), take)?);
    }
    if !there.is_dir() {
        return Ok(true);
    }
    if !take(headers(&format!("{name}/"), DIRECTORY, 0, &there)) {
        return Ok(false);
    }
    let mut inside = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    inside.sort_by_key(fs::DirEntry::file_name);
    for entry in inside {
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());
        if !add(&entry.path(), &name, take)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn contents(path: &Path, bytes: u64, take: &mut dyn FnMut(Vec<u8>) -> bool) -> io::Result<bool> {
    let mut file = File::open(path)?.take(bytes);
    let mut left = bytes;
    while left > 0 {
        let mut chunk = vec![0; CHUNK.min(usize::try_from(left).unwrap_or(CHUNK))];
        file.read_exact(&mut chunk)?;
        left -= chunk.len() as u64;
        if !take(chunk) {
            return Ok(false);
        }
    }
    let over = (bytes % BLOCK as u64) as usize;
    Ok(over == 0 || take(vec![0; BLOCK - over]))
}

fn headers(name: &str, kind: u8, bytes: u64, there: &fs::Metadata) -> Vec<u8> {
    let mut all = Vec::new();
    if name.len() >= NAME_BYTES {
        let size = name.len() as u64 + 1;
        all.extend(header(b"././@LongLink", LONG_NAME, size, 0o644, 0));
        all.extend(name.as_bytes());
        all.resize(all.len() + BLOCK - name.len() % BLOCK, 0);
    }
    let modified = u64::try_from(there.mtime()).unwrap_or(0);
    all.extend(header(name.as_bytes(), kind, bytes, there.mode() & 0o777, modified));
    all
}

fn header(name: &[u8], kind: u8, bytes: u64, mode: u32, modified_unix_s: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let name = &name[..name.len().min(NAME_BYTES)];
    block[..name.len()].copy_from_slice(name);
    octal(&mut block[100..108], u64::from(mode));
    octal(&mut block[108..116], 0);
    octal(&mut block[116..124], 0);
    octal(&mut block[124..136], bytes);
    octal(&mut block[136..148], modified_unix_s);
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    // The checksum is computed with spaces in its own field.
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    octal(&mut block[148..155], sum);
    block
}

/// Writes octal digits and a zero byte, or base 256 with the highest bit set.
fn octal(field: &mut [u8], number: u64) {
    let digits = field.len() - 1;
    let text = format!("{number:0digits$o}");
    if text.len() == digits {
        field[..digits].copy_from_slice(text.as_bytes());
        return;
    }
    let from = field.len() - size_of::<u64>();
    field[from..].copy_from_slice(&number.to_be_bytes());
    field[0] |= 0x80;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn archive_is_readable_by_tar() {
        let base = std::env::temp_dir().join(format!("tidewire-tar-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let (from, to) = (base.join("from"), base.join("to"));
        let long = "long-".repeat(30);
        fs::create_dir_all(from.join(&long)).unwrap();
        fs::create_dir_all(&to).unwrap();
        for (name, bytes) in [("empty", 0), ("one", 1), ("block", 512), ("large", 200_001)] {
            fs::write(from.join(&long).join(name), vec![7; bytes]).unwrap();
        }
        let mut archive = Vec::new();
        write(&from, &mut |piece| {
            archive.extend(piece);
            true
        })
        .unwrap();
        assert_eq!(
            (archive.len() % BLOCK, archive.len() as u64),
            (0, length(&from).unwrap())
        );
        fs::write(base.join("a.tar"), &archive).unwrap();
        let extracted = Command::new("tar")
            .arg("-xf")
            .arg(base.join("a.tar"))
            .arg("-C")
            .arg(&to)
            .status();
        assert!(extracted.unwrap().success());
        for (name, bytes) in [("empty", 0), ("one", 1), ("block", 512), ("large", 200_001)] {
            assert_eq!(
                fs::read(to.join("from").join(&long).join(name)).unwrap(),
                vec![7; bytes],
                "{name}"
            );
        }
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn write_stops_when_the_receiver_stops() {
        let mut pieces = 0;
        write(&std::env::temp_dir(), &mut |_| {
            pieces += 1;
            false
        })
        .unwrap();
        assert_eq!(pieces, 1);
    }

    #[test]
    fn large_sizes_are_in_base_256() {
        let mut field = [0; 12];
        octal(&mut field, 1 << 33);
        assert_eq!(field, [0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
        octal(&mut field, 8);
        assert_eq!(&field, b"00000000010\0");
    }
}

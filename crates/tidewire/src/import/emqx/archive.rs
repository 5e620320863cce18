//! Reads a backup archive of EMQX, a tar file compressed with gzip, into memory. Nothing is extracted to the disk.
//!
//! The archive can come from anyone: the number of files, their size and the size of the whole are bounded, and a name
//! that leaves the directory of the archive is an error. Links and devices are errors as well: EMQX writes none.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::MultiGzDecoder;

/// Maximum size of the uncompressed archive.
const ARCHIVE_BYTES_MAX: u64 = 512 << 20;
/// Maximum number of files and directories.
const ENTRIES_MAX: usize = 10_000;
const BLOCK: usize = 512;
/// Maximum size of a long name or of extended headers.
const HEADER_BYTES_MAX: usize = 64 << 10;

/// The files by their path below the directory of the archive, such as `mnesia/emqx_acl`.
#[derive(Debug)]
pub struct Archive {
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Archive {
    pub fn read(bytes: &[u8]) -> Result<Archive, String> {
        Archive::read_within(bytes, ARCHIVE_BYTES_MAX)
    }

    fn read_within(bytes: &[u8], bytes_max: u64) -> Result<Archive, String> {
        let mut plain = Vec::new();
        let mut decoder = MultiGzDecoder::new(bytes).take(bytes_max + 1);
        decoder
            .read_to_end(&mut plain)
            .map_err(|error| format!("this is not a gzip archive: {error}"))?;
        if plain.len() as u64 > bytes_max {
            return Err(format!("the archive has more than {bytes_max} bytes uncompressed"));
        }
        let mut files = BTreeMap::new();
        let mut tar = Tar {
            bytes: &plain,
            offset: 0,
            long_name: None,
        };
        let mut entries = 0;
        while let Some((name, contents)) = tar.next()? {
            entries += 1;
            if entries > ENTRIES_MAX {
                return Err(format!("the archive has more than {ENTRIES_MAX} entries"));
            }
            let Some(contents) = contents else { continue };
            let path = inner_path(&name)?;
            if files.insert(path, contents.to_vec()).is_some() {
                return Err(format!("the archive contains {name:?} twice"));
            }
        }
        Ok(Archive { files })
    }

    pub fn text(&self, path: &str) -> Result<&str, String> {
        let bytes = self
            .files
            .get(path)
            .ok_or_else(|| format!("the archive has no {path}"))?;
        std::str::from_utf8(bytes).map_err(|error| format!("{path}: not UTF-8 at byte {}", error.valid_up_to()))
    }
}

/// Removes the directory that contains everything.
fn inner_path(name: &str) -> Result<String, String> {
    let words: Vec<&str> = name.split('/').filter(|word| !matches!(*word, "" | ".")).collect();
    if name.starts_with('/') || words.contains(&"..") || name.contains('\\') {
        return Err(format!("the archive contains the unsafe path {name:?}"));
    }
    match words.split_first() {
        Some((_, rest)) if !rest.is_empty() => Ok(rest.join("/")),
        _ => Err(format!("{name:?} is outside of the directory of the archive")),
    }
}

struct Tar<'a> {
    bytes: &'a [u8],
    offset: usize,
    /// Name from an extended header, for the next entry.
    long_name: Option<String>,
}

/// Name and contents of an entry. A directory has no contents.
type TarEntry<'a> = (String, Option<&'a [u8]>);

impl<'a> Tar<'a> {
    fn error(&self, message: &str) -> String {
        format!("the archive is damaged at byte {}: {message}", self.offset)
    }

    fn next(&mut self) -> Result<Option<TarEntry<'a>>, String> {
        loop {
            let Some(header) = self.bytes.get(self.offset..self.offset + BLOCK) else {
                // Some programs omit the empty blocks at the end.
                return match self.bytes.len() == self.offset {
                    true => Ok(None),
                    false => Err(self.error("a header is cut off")),
                };
            };
            if header.iter().all(|&byte| byte == 0) {
                return Ok(None);
            }
            self.check_sum(header)?;
            let size = octal(&header[124..136]).ok_or_else(|| self.error("the size of a file is invalid"))?;
            let begin = self.offset + BLOCK;
            let contents = begin.checked_add(size).and_then(|end| self.bytes.get(begin..end));
            let contents = contents.ok_or_else(|| self.error("a file is cut off"))?;
            let name = self.long_name.take().map_or_else(|| name_of(header), Ok)?;
            let kind = header[156];
            match kind {
                b'x' | b'L' => self.long_name = Some(self.extended_name(kind, contents)?),
                // Comments for all entries.
                b'g' => {}
                _ => {}
            }
            self.offset = begin + size.div_ceil(BLOCK) * BLOCK;
            match kind {
                0 | b'0' | b'7' => return Ok(Some((name, Some(contents)))),
                b'5' => return Ok(Some((name, None))),
                b'x' | b'L' | b'g' => {}
                _ => {
                    return Err(format!(
                        "the archive contains {name:?}, which is not a file or directory"
                    ));
                }
            }
        }
    }

    fn check_sum(&self, header: &[u8]) -> Result<(), String> {
        let stated = octal(&header[148..156]);
        let bytes = header.iter().enumerate();
        let sum: usize = bytes
            .map(|(at, &byte)| if (148..156).contains(&at) { 32 } else { byte.into() })
            .sum();
        match stated == Some(sum) {
            true => Ok(()),
            false => Err(self.error("the checksum of a header is wrong")),
        }
    }

    /// `L`: GNU tar. `x`: lines `LENGTH KEY=VALUE` of POSIX.
    fn extended_name(&self, kind: u8, contents: &[u8]) -> Result<String, String> {
        let invalid = || self.error("an extended header is invalid");
        if contents.len() > HEADER_BYTES_MAX {
            return Err(invalid());
        }
        let text = std::str::from_utf8(contents).map_err(|_| invalid())?;
        if kind == b'L' {
            return Ok(text.trim_end_matches('\0').to_owned());
        }
        let mut rest = text;
        while !rest.is_empty() {
            let (length, _) = rest.split_once(' ').ok_or_else(invalid)?;
            let length: usize = length.parse().map_err(|_| invalid())?;
            let line = rest.get(..length).filter(|line| !line.is_empty()).ok_or_else(invalid)?;
            let (_, assignment) = line.split_once(' ').ok_or_else(invalid)?;
            if let Some(path) = assignment.strip_prefix("path=") {
                return Ok(path.trim_end_matches('\n').to_owned());
            }
            rest = &rest[length..];
        }
        // Only other properties: the name in the header of the file applies.
        name_of_next(self.bytes, self.offset, contents.len()).ok_or_else(invalid)?
    }
}

fn name_of_next(bytes: &[u8], offset: usize, size: usize) -> Option<Result<String, String>> {
    let next = offset + BLOCK + size.div_ceil(BLOCK) * BLOCK;
    bytes.get(next..next + BLOCK).map(name_of)
}

fn name_of(header: &[u8]) -> Result<String, String> {
    let field = |range: std::ops::Range<usize>| {
        let field = header[range].split(|&byte| byte == 0).next().unwrap_or_default();
        std::str::from_utf8(field).map_err(|_| "the archive contains a name that is not UTF-8".to_owned())
    };
    let name = field(0..100)?;
    let is_posix = header[257..262] == *b"ustar";
    Ok(match if is_posix { field(345..500)? } else { "" } {
        "" => name.to_owned(),
        prefix => format!("{prefix}/{name}"),
    })
}

fn octal(field: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(field).ok()?;
    let text = text.trim_matches(['\0', ' ']);
    match text.is_empty() {
        true => Some(0),
        false => usize::from_str_radix(text, 8).ok(),
    }
}

#[cfg(test)]
pub mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn entry(name: &str, kind: u8, contents: &[u8]) -> Vec<u8> {
        let mut header = [0u8; BLOCK];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
        header[156] = kind;
        header[257..263].copy_from_slice(b"ustar\0");
        header[148..156].copy_from_slice(b"        ");
        let sum: usize = header.iter().map(|&byte| usize::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        let mut bytes = header.to_vec();
        bytes.extend(contents);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    fn zip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).expect("a vector takes all");
        encoder.finish().expect("a vector takes all")
    }

    fn read(entries: &[Vec<u8>]) -> Result<Archive, String> {
        Archive::read(&zip(&entries.concat()))
    }

    #[test]
    fn files_are_found_below_the_directory() {
        let long = format!("b/{}", "x".repeat(120));
        let pax = format!("path={long}\n");
        let pax = format!("{} {pax}", pax.len() + 4);
        let archive = read(&[
            entry("b/", b'5', b""),
            entry("b/META.hocon", b'0', b"edition = ce"),
            entry("ignored", b'x', pax.as_bytes()),
            entry("b/short", b'0', b"long"),
            vec![0; 2 * BLOCK],
        ])
        .expect("valid");
        assert_eq!(archive.text("META.hocon"), Ok("edition = ce"));
        assert_eq!(archive.files[&long[2..]], b"long");
        assert_eq!(archive.files.len(), 2);
    }

    #[test]
    fn unsafe_and_damaged_archives_are_refused() {
        for (entries, part) in [
            (vec![entry("b/../../etc/passwd", b'0', b"x")], "unsafe path"),
            (vec![entry("/etc/passwd", b'0', b"x")], "unsafe path"),
            (vec![entry("passwd", b'0', b"x")], "outside of the directory"),
            (vec![entry("b/link", b'2', b"")], "not a file or directory"),
            (vec![entry("b/a", b'0', b"x"), entry("b/a", b'0', b"y")], "twice"),
            (vec![entry("b/a", b'0', &[7; 600])[..700].to_vec()], "cut off"),
            (vec![entry("b/a", b'0', b"x"), vec![9; BLOCK]], "checksum"),
            (vec![vec![0; 100]], "cut off"),
        ] {
            let error = read(&entries).unwrap_err();
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(Archive::read(b"no gzip").unwrap_err().contains("not a gzip archive"));
    }

    #[test]
    fn sizes_are_bounded() {
        let bomb = zip(&vec![0; 1 << 20]);
        assert!(bomb.len() < 10_000);
        let error = Archive::read_within(&bomb, 1000).unwrap_err();
        assert!(error.contains("more than 1000 bytes"), "{error}");
    }
}

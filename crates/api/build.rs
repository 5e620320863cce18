//! Unpacks `ui/console.tar`, compresses the console's assets with gzip, and writes the table of files that the server
//! embeds.
//!
//! The archive in the tree is not compressed: the names of all assets contain a hash, so a small change of the console
//! renames most of them. Git stores such a change in about 5 kB. It stored 316 kB when each asset was compressed.
//!
//! The table goes to `OUT_DIR/console_files.rs`, which `endpoints::console` includes. `dev/ui build` makes the archive.

use std::env;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

const ARCHIVE: &str = "../../ui/console.tar";
/// A member that the server does not serve: the hash of the sources, for `dev/lint`.
const SOURCES_HASH: &str = "sources.sha256";
const BLOCK_BYTES: usize = 512;
/// Position and length of the fields of a ustar header that are read here.
const NAME: (usize, usize) = (0, 100);
const SIZE: (usize, usize) = (124, 12);

/// Name and content of a file in the archive.
type Member<'a> = (&'a str, &'a [u8]);

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={ARCHIVE}");
    println!("cargo::rerun-if-changed=build.rs");
    let directory = env::var("OUT_DIR")?;
    let archive = fs::read(ARCHIVE).map_err(|error| format!("cannot read {ARCHIVE}: {error}"))?;
    let mut table = String::from("&[\n");
    let has_console = env::var_os("CARGO_FEATURE_CONSOLE").is_some();
    for (name, content) in members(&archive)? {
        if has_console && name != SOURCES_HASH {
            let file = add_file(Path::new(&directory), name, content);
            table.push_str(&file.map_err(|error| format!("{ARCHIVE}: {name}: {error}"))?);
        }
    }
    table.push_str("]\n");
    fs::write(Path::new(&directory).join("console_files.rs"), table)?;
    Ok(())
}

/// Returns the files of a tar archive in the ustar format.
fn members(archive: &[u8]) -> Result<Vec<Member<'_>>, Box<dyn Error>> {
    let mut members = Vec::new();
    let mut rest = archive;
    // An empty block ends the archive.
    while rest.first().is_some_and(|&byte| byte != 0) {
        let (header, content) = rest.split_at_checked(BLOCK_BYTES).ok_or("the archive is truncated")?;
        let size = usize::from_str_radix(text(header, SIZE)?, 8)?;
        members.push((
            text(header, NAME)?,
            content.get(..size).ok_or("the archive is truncated")?,
        ));
        rest = content.get(size.next_multiple_of(BLOCK_BYTES)..).unwrap_or_default();
    }
    Ok(members)
}

fn text(header: &[u8], (at, length): (usize, usize)) -> Result<&str, Box<dyn Error>> {
    let field = &header[at..at + length];
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(length);
    Ok(std::str::from_utf8(&field[..end])?)
}

/// Writes the bytes that the server sends for a file to `directory`, and returns the file's entry in the table.
fn add_file(directory: &Path, name: &str, content: &[u8]) -> Result<String, Box<dyn Error>> {
    let content_type = match name.rsplit_once('.') {
        Some((_, "html")) => "text/html; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        _ => return Err("unknown file type: add its content type to crates/api/build.rs".into()),
    };
    let path = match name {
        "index.html" => "/".to_owned(),
        _ => format!("/{name}"),
    };
    let is_gzip = name.starts_with("assets/");
    let stored = directory.join(name.replace('/', "-"));
    match is_gzip {
        true => {
            let mut encoder = GzEncoder::new(fs::File::create(&stored)?, Compression::best());
            encoder.write_all(content)?;
            encoder.finish()?;
        }
        false => fs::write(&stored, content)?,
    }
    Ok(format!(
        "ConsoleFile {{ path: {path:?}, content_type: {content_type:?}, bytes: include_bytes!({stored:?}), is_gzip: {is_gzip} }},\n"
    ))
}

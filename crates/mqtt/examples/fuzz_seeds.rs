//! Writes the seeds of the fuzz targets anew from the table of raw packets.

#[path = "../tests/table/mod.rs"]
mod table;

use std::fs;
use std::io;

fn main() -> io::Result<()> {
    let directory = table::seeds::directory();
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    for (path, bytes) in table::seeds::files() {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&directory))?;
        fs::write(path, bytes)?;
    }
    Ok(())
}

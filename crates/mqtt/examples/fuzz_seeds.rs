//! Regenerates the seeds of the codec's fuzz targets from the table of raw packets.

#[path = "../tests/table/mod.rs"]
mod table;

use std::fs;
use std::io;

fn main() -> io::Result<()> {
    let directory = table::seeds::directory();
    for target in table::seeds::targets() {
        match fs::remove_dir_all(directory.join(target)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    for (path, bytes) in table::seeds::files() {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&directory))?;
        fs::write(path, bytes)?;
    }
    Ok(())
}

//! The seeds of the fuzz targets are those of the table.

mod table;

use std::collections::BTreeMap;
use std::fs;

#[test]
fn seeds_are_up_to_date() {
    let directory = table::seeds::directory();
    let mut found = BTreeMap::new();
    for target in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
        for file in fs::read_dir(target.path()).unwrap().map(Result::unwrap) {
            let name = format!("{}/{}", target.file_name().display(), file.file_name().display());
            found.insert(name, fs::read(file.path()).unwrap());
        }
    }
    assert!(
        found == table::seeds::files(),
        "run `cargo run -p tidewire-mqtt --example fuzz_seeds`"
    );
}

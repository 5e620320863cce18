//! Tests that the seeds of the codec's fuzz targets match the table. Other targets have seeds written by hand.

use std::collections::BTreeMap;
use std::fs;

use crate::table;

#[test]
fn seeds_are_up_to_date() {
    let directory = table::seeds::directory();
    let mut found = BTreeMap::new();
    for target in table::seeds::targets() {
        for file in fs::read_dir(directory.join(&target)).unwrap().map(Result::unwrap) {
            let name = format!("{target}/{}", file.file_name().display());
            found.insert(name, fs::read(file.path()).unwrap());
        }
    }
    assert!(
        found == table::seeds::files(),
        "run `cargo run -p tidewire-mqtt --example fuzz_seeds`"
    );
}

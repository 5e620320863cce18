//! Fuzzes the opening of a journal with changed bytes. The first two input bytes are the number of batches and whether
//! checksums are corrected. Three bytes per batch follow. The rest are changes of four bytes each.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| tidewire_fuzz::check_journal(script));

//! The first two bytes say how many batches there are and whether checksums are made right again; three bytes a batch; the rest are
//! changes of four bytes each.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| tidewire_fuzz::check_journal(script));

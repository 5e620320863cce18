//! The first packet of a connection, of which nothing is known.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::check_both(bytes, tidewire_fuzz::check_decode_connect));

//! Fuzzes the decoding of the first packet of a connection, whose protocol version is unknown.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::check_both(bytes, tidewire_fuzz::check_decode_connect));

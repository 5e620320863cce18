//! Fuzzes a password file. A parsed file, written and parsed again, has the same meaning.

#![no_main]

use std::path::Path;

use auth::Users;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let path = Path::new("users");
    let users = match Users::parse(path, text) {
        Ok(users) => users,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let written = users.to_file_text();
    let again = Users::parse(path, written.as_bytes()).expect("a written file can be parsed");
    assert_eq!(again.to_file_text(), written);
    assert_eq!(again.len(), users.len());
});

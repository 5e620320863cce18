//! Fuzzes the messages of SCRAM clients. The last message is tried as it is, and with the nonce of the exchange. No
//! client is admitted, because the fuzzer does not know the password.

#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use auth::{ScramMethod, ScramServer, Users};
use libfuzzer_sys::fuzz_target;

/// `alice` has a verifier for SCRAM-SHA-256.
const USERS: &str = "alice:$scram-sha-256$i=4096$W22ZaJ0SNY7soEsUEjb6gQ$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY$wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU\n";

static SERVER: LazyLock<ScramServer> = LazyLock::new(|| {
    let users = Users::parse(Path::new("users"), USERS.as_bytes()).expect("the file is valid");
    ScramServer::new(users.into()).expect("the system has random bytes")
});

fuzz_target!(|bytes: &[u8]| {
    let mut messages = bytes.splitn(2, |byte| *byte == b'\n');
    let (first, last) = (messages.next().unwrap_or_default(), messages.next().unwrap_or_default());
    for method in ScramMethod::ALL {
        log_in(method, first, last);
    }
});

fn log_in(method: ScramMethod, first: &[u8], last: &[u8]) {
    let (exchange, answer) = match SERVER.begin(method, first) {
        Ok(begun) => begun,
        Err(error) => return assert!(!error.is_guess(), "{error}"),
    };
    assert!(!exchange.user_name().is_empty());
    let answer = std::str::from_utf8(&answer).expect("the server sends text");
    let nonce = answer.strip_prefix("r=").and_then(|rest| rest.split_once(",s="));
    let (nonce, _) = nonce.expect("the answer has a nonce and a salt");
    assert!(SERVER.finish(&exchange, last).is_err());
    let with_nonce = [format!("c=biws,r={nonce}").as_bytes(), last].concat();
    assert!(SERVER.finish(&exchange, &with_nonce).is_err());
}

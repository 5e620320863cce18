//! Certificates that another program replaces while the server runs.

use super::*;

#[test]
fn replaced_certificate_files_are_used_once_the_pair_is_complete() {
    let server = Server::start("changed-files", "[tls]\nreload_interval = \"100ms\"\n");
    let old = fs::read_to_string(server.dir.join("cert.pem")).unwrap();
    let (certificate, key) = pair();
    server.write("cert.pem", &certificate);
    server.wait_for_log("the present certificates stay in use");
    assert!(server.is_shown(&old));
    server.write("key.pem", &key);
    server.wait_for_log("because their files have changed");
    server.until("new connections see the new certificate", || {
        server.is_shown(&certificate)
    });
    assert!(!server.is_shown(&old));
}

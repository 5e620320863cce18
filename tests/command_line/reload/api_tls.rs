//! Failed TLS handshakes on the port of the API.

use super::*;

/// This harness waits for the log, so it can start a server whose API uses HTTPS.
#[test]
fn failed_tls_handshakes_of_the_api_are_logged() {
    let dir = std::env::temp_dir().join(format!("tidewire-reload-{}-api-tls", std::process::id()));
    let file = |name: &str| dir.join(name).display().to_string();
    let config = format!(
        "[api]\ncert_file = {:?}\nkey_file = {:?}\n",
        file("cert.pem"),
        file("key.pem")
    );
    let server = Server::start("api-tls", &config);
    let mut stream = TcpStream::connect(("127.0.0.1", server.ports[4])).unwrap();
    let address = stream.local_addr().unwrap().to_string();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    // The server may reset the connection.
    let _ = stream.read_to_end(&mut Vec::new());
    let parts = [&*address, "tls_handshake", "HTTP without TLS arrived on a TLS listener"];
    server.until("the log has the address and the reason", || {
        server
            .log()
            .lines()
            .any(|line| line.contains("ended before the first request") && parts.iter().all(|part| line.contains(part)))
    });
}

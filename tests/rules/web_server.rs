//! A web server that accepts POST requests: HTTP/1.1 with keep-alive and one thread per connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::free_port;

#[derive(Clone)]
pub struct WebServer {
    pub address: SocketAddr,
    bodies: Arc<Mutex<Vec<String>>>,
    status: u16,
}

impl WebServer {
    /// Returns a server with a reserved address that does not listen yet.
    pub fn away() -> WebServer {
        WebServer {
            address: free_port(),
            bodies: Arc::default(),
            status: 200,
        }
    }

    pub fn here() -> WebServer {
        let server = WebServer::away();
        server.come();
        server
    }

    /// Returns the server with this status for all requests.
    pub fn answering(status: u16) -> WebServer {
        let server = WebServer {
            status,
            ..WebServer::away()
        };
        server.come();
        server
    }

    /// Returns a server at the same address that answers all requests with this status.
    pub fn refusing(self, status: u16) -> WebServer {
        WebServer { status, ..self }
    }

    pub fn come(&self) {
        let listener = TcpListener::bind(self.address).expect("the port is free");
        let (bodies, status) = (self.bodies.clone(), self.status);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let bodies = bodies.clone();
                thread::spawn(move || serve(stream, &bodies, status));
            }
        });
    }

    pub fn bodies(&self) -> Vec<String> {
        self.bodies.lock().expect("the mutex is not poisoned").clone()
    }
}

fn serve(stream: TcpStream, bodies: &Mutex<Vec<String>>, status: u16) -> Option<()> {
    let mut answers = stream.try_clone().ok()?;
    let mut requests = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        requests.read_exact(&mut body).ok()?;
        let body = String::from_utf8(body).expect("these tests send text");
        bodies.lock().expect("the mutex is not poisoned").push(body);
        // The response is one write, because a second small write would wait until the first is acknowledged.
        let answer = format!("HTTP/1.1 {status} Status\r\ncontent-length: 0\r\n\r\n");
        answers.write_all(answer.as_bytes()).ok()?;
    }
}

//! An HTTP service that knows clients: HTTP/1.1 with keep-alive and one thread per connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value as Json;

/// The answer to a request.
pub enum Reply {
    Json(Json),
    /// Status line and body.
    Raw(&'static str, &'static str),
    /// No answer until the client closes the connection.
    Hang,
}

type Handler = dyn Fn(&Json) -> Reply + Send + Sync;

pub struct Service {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Json>>>,
}

impl Service {
    /// Starts a service. It answers the JSON body of a request.
    pub fn start(handler: impl Fn(&Json) -> Reply + Send + Sync + 'static) -> Service {
        Service::start_at(([127, 0, 0, 1], 0).into(), handler)
    }

    pub fn start_at(address: SocketAddr, handler: impl Fn(&Json) -> Reply + Send + Sync + 'static) -> Service {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let requests: Arc<Mutex<Vec<Json>>> = Arc::default();
        let (handler, received): (Arc<Handler>, _) = (Arc::new(handler), requests.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (handler, received) = (handler.clone(), received.clone());
                thread::spawn(move || serve(stream, &*handler, &received));
            }
        });
        Service { address, requests }
    }

    /// Returns the bodies of the requests of a user.
    pub fn requests_of(&self, user_name: &str) -> Vec<Json> {
        let requests = self.requests.lock().expect("the mutex is not poisoned");
        let of_user = requests.iter().filter(|request| request["username"] == user_name);
        of_user.cloned().collect()
    }
}

fn serve(stream: TcpStream, handler: &Handler, received: &Mutex<Vec<Json>>) -> Option<()> {
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
        let request: Json = serde_json::from_slice(&body).expect("the server sends JSON");
        received
            .lock()
            .expect("the mutex is not poisoned")
            .push(request.clone());
        let (status, body) = match handler(&request) {
            Reply::Json(body) => ("200 OK", body.to_string()),
            Reply::Raw(status, body) => (status, body.to_owned()),
            Reply::Hang => {
                let _ = requests.read(&mut [0]);
                return None;
            }
        };
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
        answers.write_all(answer.as_bytes()).ok()?;
    }
}

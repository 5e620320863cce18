//! OCSP responses from responders that work, fail and answer something else.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use certificates::downloads::DownloadTiming;
use certificates::staples::{StapleSource, Staples};
use certificates::{ManagedStatus, staple_file, time_text};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SigningKey};

use crate::support::{Directory, Running, until};

/// A pause that does not end within a test.
const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(20);

#[derive(Clone, Copy)]
enum Answer {
    /// The certificate is good: seconds from now to the next update.
    Good(i64),
    Revoked,
    /// A whole HTTP response.
    Raw(&'static [u8]),
    /// A body of this length.
    Body(usize),
}

const UNAVAILABLE: Answer = Answer::Raw(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");

/// An authority whose responder has one answer at a time.
struct Responder {
    issuer: Arc<Issuer<'static, KeyPair>>,
    pem: String,
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
}

impl Responder {
    fn start(answer: Answer) -> Responder {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let responder = Responder {
            issuer: Arc::new(Issuer::new(params, key)),
            pem,
            address: listener.local_addr().unwrap(),
            answer: Arc::new(Mutex::new(answer)),
        };
        let (issuer, answer) = (responder.issuer.clone(), responder.answer.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = read_request(&mut stream);
                let answer = *answer.lock().unwrap();
                let now_unix_s = jiff::Timestamp::now().as_second();
                let body = match answer {
                    Answer::Good(left_s) => {
                        let status: &[u8] = &[0x80, 0];
                        response(issuer.key(), &request, status, now_unix_s, now_unix_s + left_s)
                    }
                    Answer::Revoked => {
                        let status = element(0xA1, &[&time(now_unix_s)]);
                        response(issuer.key(), &request, &status, now_unix_s, now_unix_s + 60)
                    }
                    Answer::Body(length) => vec![0; length],
                    Answer::Raw(bytes) => {
                        // The client may close the connection early.
                        let _ = stream.write_all(bytes);
                        continue;
                    }
                };
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(&[head.as_bytes(), &body].concat());
            }
        });
        responder
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    /// Issues a certificate, and returns it with that of the authority.
    fn issue(&self) -> String {
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let made = params.signed_by(&KeyPair::generate().unwrap(), &*self.issuer);
        made.unwrap().pem() + &self.pem
    }
}

/// Returns the body of a request.
fn read_request(stream: &mut TcpStream) -> Vec<u8> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.contains("content-type: application/ocsp-request"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    body
}

/// Encodes an element of DER.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len();
    let head = match length {
        0..=0x7F => vec![tag, length as u8],
        0x80..=0xFF => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    [head, content].concat()
}

/// GeneralizedTime.
fn time(unix_s: i64) -> Vec<u8> {
    let digits: String = time_text(unix_s).chars().filter(char::is_ascii_digit).collect();
    element(0x18, &[format!("{digits}Z").as_bytes()])
}

/// Returns the answer of the issuer to a request.
fn response(key: &KeyPair, request: &[u8], status: &[u8], from_unix_s: i64, to_unix_s: i64) -> Vec<u8> {
    // OCSPRequest, TBSRequest, list of requests and Request have heads of two bytes.
    let certificate_id = &request[8..];
    // Behind the algorithm and the hash of the name.
    let key_hash = &certificate_id[37..57];
    let single = element(
        0x30,
        &[
            certificate_id,
            status,
            &time(from_unix_s),
            &element(0xA0, &[&time(to_unix_s)]),
        ],
    );
    let responder = element(0xA2, &[&element(0x04, &[key_hash])]);
    let data = element(0x30, &[&responder, &time(from_unix_s), &element(0x30, &[&single])]);
    // 1.2.840.10045.4.3.2, ecdsa-with-SHA256
    let algorithm = element(
        0x30,
        &[&element(0x06, &[&[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x03, 0x02]])],
    );
    let signature = element(0x03, &[&[0], &key.sign(&data).unwrap()]);
    let basic = element(0x30, &[&data, &algorithm, &signature]);
    // 1.3.6.1.5.5.7.48.1.1, basic response
    let oid = element(0x06, &[&[0x2B, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01]]);
    let typed = element(0x30, &[&oid, &element(0x04, &[&basic])]);
    element(0x30, &[&[0x0A, 1, 0], &element(0xA0, &[&typed])])
}

struct Stapling {
    staples: Staples,
    source: StapleSource,
    /// Number of calls after changes of the stored response.
    changes: Arc<Mutex<usize>>,
    /// Why the listeners cannot use the response.
    problem: Arc<Mutex<Option<&'static str>>>,
    _running: Running,
}

impl Stapling {
    /// `pause` is the longest pause after a success, and the first one after a failure.
    fn start(directory: &Directory, responder: &Responder, pause: Duration) -> Stapling {
        let certificate = directory.file("server.pem", responder.issue());
        let url = format!("http://{}/", responder.address);
        let source = StapleSource {
            name: "server.pem".to_owned(),
            file: staple_file(directory.path(), &certificate, Some(&url)),
            certificate,
            issuer: None,
            responder_url: Some(url),
            ca_file: None,
            refresh: pause,
            timeout: Duration::from_secs(20),
        };
        let staples = Staples::new(vec![source.clone()]);
        let (changes, problem) = (Arc::<Mutex<usize>>::default(), Arc::<Mutex<Option<&str>>>::default());
        let (count, reason) = (changes.clone(), problem.clone());
        let changed = move |_: &Path| match *reason.lock().unwrap() {
            Some(reason) => Err(reason.to_owned()),
            None => {
                *count.lock().unwrap() += 1;
                Ok(())
            }
        };
        let timing = DownloadTiming {
            shortest: SHORT,
            first_retry: pause,
        };
        let task = staples.task(timing, Arc::new(changed));
        Stapling {
            staples,
            source,
            changes,
            problem,
            _running: Running::start(task),
        }
    }

    fn status(&self) -> ManagedStatus {
        until("a status", || self.staples.statuses().pop())
    }

    /// Waits until a response is stored, and the last attempt was successful.
    fn wait_for_response(&self) {
        until("a response", || {
            let status = self.status();
            (status.expires_at_unix_s.is_some() && status.last_error.is_none()).then_some(())
        });
    }

    fn wait_for_error(&self, part: &str) {
        until(part, || self.status().last_error.filter(|error| error.contains(part)));
    }

    /// Waits for two more failures: the last attempt has begun after this call.
    fn wait_for_failures(&self) {
        let before = self.status().failures;
        until("a failure", || (self.status().failures >= before + 2).then_some(()));
    }

    fn wait_for_changes(&self, count: usize) {
        until("a change", || (self.changes() >= count).then_some(()));
    }

    fn changes(&self) -> usize {
        *self.changes.lock().unwrap()
    }
}

#[test]
fn response_is_stored_once_the_responder_answers() {
    let (directory, responder) = (Directory::new(), Responder::start(UNAVAILABLE));
    let stapling = Stapling::start(&directory, &responder, SHORT);
    stapling.wait_for_error("the server answered 503");
    stapling.wait_for_failures();
    assert_eq!((stapling.changes(), stapling.source.file.exists()), (0, false));
    responder.set(Answer::Good(3600));
    stapling.wait_for_response();
    assert_eq!(stapling.changes(), 1);
    // The stored response stays in use, and is not replaced before half of its validity has passed.
    let stored = std::fs::read(&stapling.source.file).unwrap();
    responder.set(UNAVAILABLE);
    stapling.wait_for_failures();
    assert!(stapling.status().expires_at_unix_s.is_some());
    responder.set(Answer::Good(7200));
    stapling.wait_for_response();
    assert_eq!(std::fs::read(&stapling.source.file).unwrap(), stored);
    assert_eq!(stapling.changes(), 1);
}

#[test]
fn expired_response_is_reported_and_replaced() {
    let (directory, responder) = (Directory::new(), Responder::start(Answer::Good(3)));
    let stapling = Stapling::start(&directory, &responder, SHORT);
    stapling.wait_for_response();
    responder.set(UNAVAILABLE);
    until("the end of the response", || {
        stapling.status().expires_at_unix_s.is_none().then_some(())
    });
    let before = stapling.changes();
    responder.set(Answer::Good(3600));
    stapling.wait_for_response();
    assert_eq!(stapling.changes(), before + 1);
}

#[test]
fn response_of_a_revoked_certificate_is_deleted() {
    let (directory, responder) = (Directory::new(), Responder::start(Answer::Good(3600)));
    let stapling = Stapling::start(&directory, &responder, SHORT);
    stapling.wait_for_response();
    responder.set(Answer::Revoked);
    stapling.wait_for_error("the authority has revoked the certificate of the server");
    stapling.wait_for_failures();
    assert!(!stapling.source.file.exists());
    assert_eq!(stapling.status().expires_at_unix_s, None);
    // The listeners have applied the response, and its deletion once.
    assert_eq!(stapling.changes(), 2);
}

#[test]
fn other_answers_keep_the_stored_response() {
    let (directory, responder) = (Directory::new(), Responder::start(Answer::Good(3600)));
    let stapling = Stapling::start(&directory, &responder, SHORT);
    stapling.wait_for_response();
    let stored = std::fs::read(&stapling.source.file).unwrap();
    let redirect = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    let short = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort";
    for (answer, part) in [
        (Answer::Raw(redirect), "redirects are not followed"),
        (Answer::Raw(short), "was lost"),
        (Answer::Body(1), "it is not a complete OCSP response"),
        (Answer::Body(32 * 1024 + 1), "more than 32768 bytes"),
        (Answer::Good(-60), "the response has expired"),
    ] {
        responder.set(answer);
        stapling.wait_for_failures();
        stapling.wait_for_error(part);
        assert_eq!(std::fs::read(&stapling.source.file).unwrap(), stored, "{part}");
    }
    assert_eq!(stapling.changes(), 1);
}

#[test]
fn use_is_retried_also_while_the_responder_fails() {
    let (directory, responder) = (Directory::new(), Responder::start(UNAVAILABLE));
    let stapling = Stapling::start(&directory, &responder, SHORT);
    *stapling.problem.lock().unwrap() = Some("tls.default is busy");
    responder.set(Answer::Good(3600));
    stapling.wait_for_error("the listeners still use the previous response: tls.default is busy");
    responder.set(UNAVAILABLE);
    stapling.wait_for_error("503 Service Unavailable, expected 200; redirects are not followed; the listeners");
    *stapling.problem.lock().unwrap() = None;
    stapling.wait_for_changes(1);
}

#[test]
fn reload_ends_the_pause_after_a_failure() {
    let (directory, responder) = (Directory::new(), Responder::start(UNAVAILABLE));
    let stapling = Stapling::start(&directory, &responder, LONG);
    stapling.wait_for_error("the server answered 503");
    responder.set(Answer::Good(3600));
    stapling.staples.certificates_replaced();
    stapling.wait_for_response();
    assert_eq!((stapling.changes(), stapling.status().failures), (1, 1));
}

#[test]
fn new_certificate_gets_its_own_response() {
    let (directory, responder) = (Directory::new(), Responder::start(Answer::Good(3600)));
    let stapling = Stapling::start(&directory, &responder, LONG);
    stapling.wait_for_changes(1);
    let first = std::fs::read(&stapling.source.file).unwrap();
    directory.file("server.pem", responder.issue());
    stapling.staples.certificates_replaced();
    stapling.wait_for_changes(2);
    assert_ne!(std::fs::read(&stapling.source.file).unwrap(), first);
}

//! Downloads of revocation lists from HTTP servers that work, fail, hang and lie.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use certificates::downloads::{DownloadTiming, Downloads, ListSource};
use certificates::{ManagedStatus, list_file};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber,
};

use crate::ports::free_port;
use crate::support::{Directory, Running, until};

/// Response of the server to each request.
#[derive(Clone)]
enum Answer {
    Body(Vec<u8>),
    /// A whole HTTP response.
    Raw(Vec<u8>),
    /// Nothing: the connection stays open.
    Silence,
    /// A body without an end.
    Endless,
}

/// An HTTP server with one answer at a time.
struct ListServer {
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
}

impl ListServer {
    fn start(answer: Answer) -> ListServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(Mutex::new(answer));
        let shared = answer.clone();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                read_head(&mut stream);
                let answer = shared.lock().unwrap().clone();
                // The client may close the connection early.
                let _ = match answer {
                    Answer::Body(body) => stream
                        .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes())
                        .and_then(|()| stream.write_all(&body)),
                    Answer::Raw(bytes) => stream.write_all(&bytes),
                    Answer::Silence => {
                        held.push(stream);
                        Ok(())
                    }
                    Answer::Endless => stream
                        .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
                        .and_then(|()| loop_until_closed(&mut stream)),
                };
            }
        });
        ListServer { address, answer }
    }

    fn url(&self) -> String {
        format!("http://{}/ca.crl", self.address)
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }
}

fn loop_until_closed(stream: &mut TcpStream) -> std::io::Result<()> {
    loop {
        stream.write_all(&[0x30; 4096])?;
    }
}

fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
        head.push(byte[0]);
    }
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::CrlSign, KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// A list of one revoked certificate. Years of its validity.
    fn list(&self, from: i32, to: i32) -> rcgen::CertificateRevocationList {
        self.numbered_list(from, to, u64::try_from(from).unwrap())
    }

    fn numbered_list(&self, from: i32, to: i32, number: u64) -> rcgen::CertificateRevocationList {
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(from, 1, 1),
            next_update: rcgen::date_time_ymd(to, 1, 1),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from(17),
                revocation_time: rcgen::date_time_ymd(from, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap()
    }

    fn der(&self, from: i32, to: i32) -> Vec<u8> {
        self.list(from, to).der().to_vec()
    }
}

struct Downloading {
    downloads: Downloads,
    changes: Arc<Mutex<Vec<PathBuf>>>,
    /// Why no listener can use a list.
    problem: Arc<Mutex<Option<String>>>,
    _running: Running,
}

impl Downloading {
    fn start(sources: Vec<ListSource>) -> Downloading {
        Downloading::start_with_problem(sources, None)
    }

    fn start_with_problem(sources: Vec<ListSource>, problem: Option<&str>) -> Downloading {
        let downloads = Downloads::new(sources);
        let changes = Arc::<Mutex<Vec<PathBuf>>>::default();
        let problem = Arc::new(Mutex::new(problem.map(str::to_owned)));
        let (list, reason) = (changes.clone(), problem.clone());
        let changed = move |file: &Path| match &*reason.lock().unwrap() {
            Some(reason) => Err(reason.clone()),
            None => {
                list.lock().unwrap().push(file.to_owned());
                Ok(())
            }
        };
        let timing = DownloadTiming {
            shortest: Duration::from_millis(20),
            first_retry: Duration::from_millis(20),
        };
        let task = downloads.task(timing, Arc::new(changed));
        Downloading {
            downloads,
            changes,
            problem,
            _running: Running::start(task),
        }
    }

    fn status(&self) -> ManagedStatus {
        until("a status", || self.downloads.statuses().pop())
    }

    fn status_of(&self, url: &str) -> ManagedStatus {
        until("a status", || {
            self.downloads.statuses().into_iter().find(|status| status.name == url)
        })
    }

    fn error(&self, part: &str) -> String {
        until(part, || self.status().last_error.filter(|error| error.contains(part)))
    }

    /// The error of an attempt that began after this call.
    fn next_error(&self) -> String {
        let before = self.status().failures;
        until("a failure", || {
            let status = self.status();
            status.last_error.filter(|_| status.failures >= before + 2)
        })
    }

    fn changes(&self) -> usize {
        self.changes.lock().unwrap().len()
    }
}

fn source(directory: &Directory, url: &str, authority: &Authority) -> ListSource {
    ListSource {
        url: url.to_owned(),
        file: list_file(directory.path(), url),
        authorities: vec![directory.file("ca.pem", &authority.pem)],
        ca_file: None,
        refresh: Duration::from_millis(50),
        timeout: Duration::from_millis(500),
        bytes_max: 64 * 1024,
    }
}

#[test]
fn lists_are_stored_and_refreshed() {
    let (directory, authority) = (Directory::new(), Authority::new("plant"));
    let first = authority.der(2023, 2100);
    let server = ListServer::start(Answer::Body(first.clone()));
    let source = source(&directory, &server.url(), &authority);
    let downloading = Downloading::start(vec![source.clone()]);
    until("a list", || (downloading.changes() == 1).then_some(()));
    assert_eq!(std::fs::read(&source.file).unwrap(), first);
    assert_eq!(downloading.status().expires_at_unix_s, Some(4_102_444_800));
    // The same list again is no change, a newer one is. PEM is accepted as well.
    let second = authority.list(2024, 2100);
    server.set(Answer::Body(second.pem().unwrap().into_bytes()));
    until("a newer list", || (downloading.changes() == 2).then_some(()));
    assert_eq!(std::fs::read(&source.file).unwrap(), second.der().to_vec());
    // An older one could be a replay of an attacker in the network.
    server.set(Answer::Body(first));
    downloading.error("is older than the stored one");
    assert_eq!(std::fs::read(&source.file).unwrap(), second.der().to_vec());
    assert_eq!(downloading.changes(), 2);

    // A list of another configuration is no longer fetched.
    downloading.downloads.set(Vec::new());
    until("no list", || downloading.downloads.statuses().is_empty().then_some(()));
}

#[test]
fn bad_answers_keep_the_stored_list() {
    let (directory, authority, other) = (Directory::new(), Authority::new("plant"), Authority::new("other"));
    let good = authority.der(2023, 2100);
    let server = ListServer::start(Answer::Body(good.clone()));
    let mut source = source(&directory, &server.url(), &authority);
    let both = directory.file("both.pem", format!("{}{}", authority.pem, other.pem));
    source.authorities.push(both);
    let downloading = Downloading::start(vec![source.clone()]);
    until("a list", || (downloading.changes() == 1).then_some(()));
    let (namesake, stranger) = (Authority::new("plant"), Authority::new("stranger"));
    let raw = |text: &str| Answer::Raw(text.as_bytes().to_vec());
    for (part, answer) in [
        ("not a complete revocation list", Answer::Body(b"<html>".to_vec())),
        ("not a complete revocation list", Answer::Body(Vec::new())),
        (
            "not a complete revocation list",
            Answer::Body(good[..good.len() - 1].to_vec()),
        ),
        ("signature", Answer::Body(namesake.der(2024, 2100))),
        ("issuer CN=stranger", Answer::Body(stranger.der(2024, 2100))),
        // An attacker in the network sends a list that another authority has really signed.
        ("CN=other instead of CN=plant", Answer::Body(other.der(2024, 2100))),
        ("in the future", Answer::Body(authority.der(2099, 2100))),
        ("404", raw("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")),
        (
            "redirects are not followed",
            raw("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
        ),
        ("was lost", raw("")),
        ("was lost", raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")),
        ("within 500 ms", Answer::Silence),
        ("more than 65536 bytes", Answer::Endless),
    ] {
        server.set(answer);
        let error = downloading.next_error();
        assert!(error.contains(part), "{part}: {error}");
        assert_eq!(std::fs::read(&source.file).unwrap(), good, "{part}");
        assert_eq!(downloading.changes(), 1, "{part}");
    }
    let status = downloading.status();
    assert_eq!(status.expires_at_unix_s, Some(4_102_444_800));
    server.set(Answer::Body(good));
    until("a success", || downloading.status().last_error.is_none().then_some(()));
}

#[test]
fn list_with_a_lower_number_is_refused() {
    let (directory, authority) = (Directory::new(), Authority::new("plant"));
    let good = authority.der(2023, 2100);
    let server = ListServer::start(Answer::Body(good.clone()));
    let source = source(&directory, &server.url(), &authority);
    let downloading = Downloading::start(vec![source.clone()]);
    until("a list", || (downloading.changes() == 1).then_some(()));
    let replayed = authority.numbered_list(2024, 2100, 5);
    server.set(Answer::Body(replayed.der().to_vec()));
    let error = downloading.error("has a lower number (cRLNumber) than the stored one");
    assert!(error.contains(&source.file.display().to_string()), "{error}");
    assert_eq!(std::fs::read(&source.file).unwrap(), good);
}

#[test]
fn list_of_an_authority_that_another_url_serves_is_refused() {
    let (directory, plant, office) = (Directory::new(), Authority::new("plant"), Authority::new("office"));
    let (first, second) = (
        ListServer::start(Answer::Body(plant.der(2023, 2100))),
        // An attacker in the network answers with a list that an authority of `ca_file` has really signed.
        ListServer::start(Answer::Body(plant.der(2024, 2100))),
    );
    let both = directory.file("both.pem", format!("{}{}", plant.pem, office.pem));
    let [first_source, second_source] = [&first, &second].map(|server| ListSource {
        authorities: vec![both.clone()],
        ..source(&directory, &server.url(), &plant)
    });
    let downloading = Downloading::start(vec![first_source.clone()]);
    until("the list of plant", || (downloading.changes() == 1).then_some(()));
    // Also if the new URL is the first one in the configuration.
    downloading
        .downloads
        .set(vec![second_source.clone(), first_source.clone()]);
    let refused = |part: &str| {
        until(part, || {
            let error = downloading.status_of(&second.url()).last_error;
            error.filter(|error| error.contains(part))
        })
    };
    let error = refused("the list is of CN=plant, whose list already comes from");
    assert!(error.contains(&first.url()) && error.contains("crl_urls"), "{error}");
    assert!(!second_source.file.exists());
    // The URL of plant still has newer lists.
    first.set(Answer::Body(plant.der(2025, 2100)));
    until("the newer list of plant", || (downloading.changes() == 2).then_some(()));

    let of_office = office.der(2023, 2100);
    second.set(Answer::Body(of_office.clone()));
    until("the list of office", || (downloading.changes() == 3).then_some(()));
    second.set(Answer::Body(plant.der(2026, 2100)));
    refused("the list is of CN=plant instead of CN=office");
    assert_eq!(std::fs::read(&second_source.file).unwrap(), of_office);

    // Without the first URL, and with the list of plant removed by hand, the second one may serve it.
    downloading.downloads.set(vec![second_source.clone()]);
    std::fs::remove_file(&second_source.file).unwrap();
    until("the list of plant", || (downloading.changes() == 4).then_some(()));
}

#[test]
fn expired_list_is_stored_and_reported() {
    let (directory, authority) = (Directory::new(), Authority::new("plant"));
    let server = ListServer::start(Answer::Body(authority.der(2020, 2021)));
    let source = source(&directory, &server.url(), &authority);
    let downloading = Downloading::start(vec![source.clone()]);
    // It still names revoked certificates.
    downloading.error("has expired at 2021-01-01");
    assert!(source.file.exists());
    server.set(Answer::Body(authority.der(2023, 2100)));
    until("a success", || downloading.status().last_error.is_none().then_some(()));
}

#[test]
fn stored_list_is_applied_until_a_listener_can_use_it() {
    let (directory, authority) = (Directory::new(), Authority::new("plant"));
    let good = authority.der(2023, 2100);
    let server = ListServer::start(Answer::Body(good.clone()));
    let source = source(&directory, &server.url(), &authority);
    let downloading = Downloading::start_with_problem(vec![source.clone()], Some("the key is missing"));
    let error = downloading.error("not in use");
    assert!(error.contains("the key is missing"), "{error}");
    assert_eq!(std::fs::read(&source.file).unwrap(), good);
    downloading.next_error();
    *downloading.problem.lock().unwrap() = None;
    until("a success", || downloading.status().last_error.is_none().then_some(()));
    assert_eq!(downloading.changes(), 1);
}

#[test]
fn stored_list_of_an_unknown_authority_is_replaced() {
    let (directory, authority, former) = (Directory::new(), Authority::new("plant"), Authority::new("former"));
    let good = authority.der(2023, 2100);
    let server = ListServer::start(Answer::Body(good.clone()));
    let source = source(&directory, &server.url(), &authority);
    std::fs::create_dir_all(source.file.parent().unwrap()).unwrap();
    std::fs::write(&source.file, former.der(2024, 2100)).unwrap();
    let _downloading = Downloading::start(vec![source.clone()]);
    until("the list", || {
        (std::fs::read(&source.file).unwrap() == good).then_some(())
    });
}

#[test]
fn server_that_is_down_is_asked_again() {
    let (directory, authority) = (Directory::new(), Authority::new("plant"));
    let url = format!("http://{}/ca.crl", free_port());
    let downloading = Downloading::start(vec![source(&directory, &url, &authority)]);
    let error = downloading.error("cannot connect");
    assert!(error.contains("127.0.0.1"), "{error}");
    until("a further attempt", || {
        (downloading.status().failures >= 2).then_some(())
    });
}

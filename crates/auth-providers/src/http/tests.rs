//! Requests to a server on a socket of the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use auth::{Login, Password, RemoteProvider};
use tokio::runtime::Builder;

use super::*;
use crate::provider::OnFailure;

/// A request that the server has received.
#[derive(Debug)]
struct Received {
    /// Method, path and query.
    line: String,
    /// In lower case.
    headers: Vec<String>,
    body: String,
}

/// Answers one request and returns it.
fn serve_one(listener: TcpListener, answer: String) -> JoinHandle<Received> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a line");
            if line.trim_end().is_empty() {
                break;
            }
            lines.push(line.trim_end().to_owned());
        }
        let headers: Vec<String> = lines[1..].iter().map(|line| line.to_lowercase()).collect();
        let length = headers
            .iter()
            .find_map(|header| header.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
        reader.read_exact(&mut body).expect("a body");
        stream.write_all(answer.as_bytes()).expect("a client");
        Received {
            line: lines[0].clone(),
            headers,
            body: String::from_utf8(body).expect("text"),
        }
    })
}

fn json_answer(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
}

fn config(url: String) -> HttpSourceConfig {
    HttpSourceConfig {
        method: HttpSourceMethod::Post,
        url,
        headers: BTreeMap::new(),
        body: BTreeMap::new(),
        body_format: HttpBodyFormat::Json,
        answer: HttpAnswerMeaning::Body,
        tls: TlsConfig::default(),
    }
}

fn limits() -> SourceLimits {
    SourceLimits {
        timeout: Duration::from_secs(60),
        max_concurrent: 2,
        max_waiting: 2,
        cache_size: 10,
        cache_allowed: Duration::ZERO,
        cache_denied: Duration::ZERO,
        on_failure: OnFailure::Allow,
    }
}

fn credentials(user_name: Option<&str>, password: Option<&[u8]>) -> Credentials {
    Credentials {
        client_id: "c 1".to_owned(),
        user_name: user_name.map(str::to_owned),
        password: password.map(Password::new),
        address: [192, 0, 2, 7].into(),
        certificate_common_name: None,
        certificate_subject: None,
        action: None,
    }
}

fn ask(config: &HttpSourceConfig, credentials: Credentials) -> ProviderOutcome {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let provider = provider(config, limits()).expect("a valid configuration");
    runtime.block_on(provider.authenticate(Arc::new(credentials)))
}

/// Asks a server that allows, and returns the request.
fn request(change: impl FnOnce(&mut HttpSourceConfig), path: &str, credentials: Credentials) -> Received {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut config = config(format!("http://{}{path}", listener.local_addr().expect("an address")));
    change(&mut config);
    let server = serve_one(listener, json_answer(r#"{"result":"allow","is_superuser":true}"#));
    let outcome = ask(&config, credentials);
    assert!(
        matches!(&outcome, ProviderOutcome::Allow(login) if login.is_superuser && login.provider == Some("http")),
        "{outcome:?}"
    );
    server.join().expect("the server does not panic")
}

fn fields(fields: &[(&str, &str)]) -> BTreeMap<String, String> {
    fields
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

#[test]
fn json_body_and_headers_have_the_values_of_the_client() {
    let received = request(
        |config| {
            config.body = fields(&[
                ("username", "${username}"),
                ("password", "${password}"),
                ("ip", "${peerhost}"),
            ]);
            config
                .headers
                .insert("X-Client".to_owned(), Secret::new("id=${clientid}"));
            config
                .headers
                .insert("Authorization".to_owned(), Secret::new("Bearer s3cret"));
        },
        "/auth/${clientid}?u=${username}&n=${cert_common_name}",
        credentials(Some("a\"&b=c"), Some(b"p\\\n")),
    );
    assert_eq!(received.line, "POST /auth/c%201?u=a%22%26b%3Dc&n= HTTP/1.1");
    for header in [
        "accept: application/json",
        "authorization: bearer s3cret",
        "content-type: application/json",
        "x-client: id=c 1",
    ] {
        assert!(
            received.headers.iter().any(|found| found == header),
            "{header}: {received:?}"
        );
    }
    let body: serde_json::Value = serde_json::from_str(&received.body).expect("JSON");
    let expected = serde_json::json!({ "username": "a\"&b=c", "password": "p\\\n", "ip": "192.0.2.7" });
    assert_eq!(body, expected);
}

#[test]
fn form_body_and_query_are_encoded() {
    let values = [("pass word", "${password}"), ("user", "${username}")];
    let received = request(
        |config| {
            config.body = fields(&values);
            config.body_format = HttpBodyFormat::Form;
        },
        "",
        credentials(Some("a&b"), Some("ü".as_bytes())),
    );
    assert_eq!(received.line, "POST / HTTP/1.1");
    assert_eq!(received.body, "pass%20word=%C3%BC&user=a%26b");
    for (path, line) in [
        ("/a", "GET /a?pass%20word=%C3%BC&user=a%26b HTTP/1.1"),
        ("/a?x=1", "GET /a?x=1&pass%20word=%C3%BC&user=a%26b HTTP/1.1"),
    ] {
        let received = request(
            |config| {
                config.body = fields(&values);
                config.method = HttpSourceMethod::Get;
            },
            path,
            credentials(Some("a&b"), Some("ü".as_bytes())),
        );
        assert_eq!((received.line.as_str(), received.body.as_str()), (line, ""));
    }
}

/// `on_failure` is `allow` in these tests: nothing that a client sends may be a failure.
#[test]
fn credentials_that_no_request_can_contain_are_not_asked() {
    // No server listens on this port.
    let with_path = |path: &str| config(format!("http://127.0.0.1:1{path}"));
    let mut with_header = with_path("/");
    with_header
        .headers
        .insert("x-user".to_owned(), Secret::new("${username}"));
    let mut with_password = with_path("/");
    with_password.body = fields(&[("password", "${password}")]);
    for (config, credentials, is_denied) in [
        (with_path("/u/${username}"), credentials(Some(".."), None), true),
        (with_path("/u/${username}"), credentials(Some("a/../../b"), None), true),
        (with_path("/u/${username}"), credentials(Some(""), None), true),
        (with_path("/u/${username}"), credentials(None, Some(b"p")), false),
        (with_header.clone(), credentials(Some("a\r\nx-admin: 1"), None), true),
        (with_header, credentials(Some("ü"), None), true),
        (with_password, credentials(Some("a"), Some(&[0xFF])), false),
    ] {
        let outcome = ask(&config, credentials);
        let expected = match is_denied {
            true => matches!(outcome, ProviderOutcome::Deny(DenyReason::NotAuthorized)),
            false => matches!(outcome, ProviderOutcome::Ignore),
        };
        assert!(expected, "{}: {outcome:?}", config.url);
    }
}

#[test]
fn redirects_and_long_answers_are_failures() {
    let target = TcpListener::bind("127.0.0.1:0").expect("a port");
    let location = format!("http://{}/", target.local_addr().expect("an address"));
    let long = format!("{{\"result\":\"deny\",\"x\":\"{}\"}}", "x".repeat(64 << 10));
    for answer in [
        format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"),
        json_answer(&long),
        "garbage\r\n\r\n".to_owned(),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let config = config(format!("http://{}", listener.local_addr().expect("an address")));
        let server = serve_one(listener, answer);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let provider = provider(&config, limits()).expect("a valid configuration");
        let client = Arc::new(credentials(Some("a"), Some(b"p")));
        let outcome = runtime.block_on(provider.clone().authenticate(client));
        assert!(
            matches!(&outcome, ProviderOutcome::Allow(login) if is_plain(login)),
            "{outcome:?}"
        );
        assert_eq!(crate::WatchedProvider::stats(&*provider).failures, 1);
        drop(server.join());
    }
    target.set_nonblocking(true).expect("a socket");
    assert!(target.accept().is_err(), "the redirect was followed");
}

fn is_plain(login: &Login) -> bool {
    !login.is_superuser && login.rules.is_none()
}

#[test]
fn equal_values_are_equal_questions() {
    let mut config = config("http://127.0.0.1:1/${username}".to_owned());
    config.body = fields(&[("password", "${password}")]);
    let source = HttpSource::new(TemplateUse::Login, &config, limits()).expect("a valid configuration");
    let key = |credentials: &Credentials| source.question(credentials).expect("a question");
    let one = credentials(Some("a"), Some(b"p"));
    let other_id = Credentials {
        client_id: "other".to_owned(),
        ..one.clone()
    };
    assert!(key(&one) == key(&other_id));
    assert!(key(&one) != key(&credentials(Some("a"), Some(b"q"))));
    assert!(key(&credentials(Some("a"), None)) != key(&credentials(Some("a"), Some(b""))));
}

#[test]
fn invalid_configurations_are_rejected() {
    let header = |name: &str, value: &str| {
        let mut config = config("http://h".to_owned());
        config.headers.insert(name.to_owned(), Secret::new(value));
        config
    };
    let mut with_attribute = config("http://h".to_owned());
    with_attribute.body = fields(&[("a", "${client_attrs.a}")]);
    let mut without_ca = config("https://h".to_owned());
    without_ca.tls.ca_file = Some("/nonexistent/ca.pem".into());
    for (config, reason) in [
        (config("".to_owned()), "url: "),
        (config("h:80/a".to_owned()), "url: "),
        (config("http://${username}/a".to_owned()), "url: "),
        (config("http://h:${username}".to_owned()), "url: "),
        (config("http://u:p@h/".to_owned()), "url: "),
        (
            config("http://h/${user}".to_owned()),
            "url: unknown placeholder ${user}",
        ),
        (config("http://h/a#b".to_owned()), "url: found #"),
        (header("Host", "${username}"), "headers.Host"),
        (header("content-type", "text/plain"), "headers.content-type"),
        (header("Content-Length", "1"), "headers.Content-Length"),
        (header("a b", "1"), "headers.a b"),
        (header("a", "s3cret${user}"), "headers.a: unknown placeholder ${user}"),
        (with_attribute, "body.a: ${client_attrs.a} has no value"),
        (without_ca, "tls.ca_file"),
    ] {
        let error = provider(&config, limits()).err().expect(&config.url);
        assert!(error.starts_with(reason), "{}: {error}", config.url);
        assert!(!error.contains("s3cret") && !error.contains("u:p"), "{error}");
    }
}

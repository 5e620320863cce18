//! Serves the files of the console. `dev/ui build` packs them into `ui/console.tar`; `build.rs` compresses and
//! embeds them, and the server sends them unchanged. All other data of the console comes from the API.
//!
//! The content security policy forbids inline scripts and other origins. Besides this port, which also accepts MQTT,
//! the page
//! may connect to the WebSocket listeners of this node, so that users can test a listener.

use std::fmt::Write;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use broker::Transport;
use web::guard::RequiredAccess;
use web::problem::HttpProblem;

use crate::app::Endpoint;

/// A file of the console.
struct ConsoleFile {
    /// Request path of the file.
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
    is_gzip: bool,
}

static FILES: &[ConsoleFile] = include!(concat!(env!("OUT_DIR"), "/console_files.rs"));

#[cfg(feature = "console")]
const MISSING_FILE: &str = "no such file: if the console was updated, reload the page";
#[cfg(not(feature = "console"))]
const MISSING_FILE: &str = "this build has no console; its API is under /api/v1 and described in /api/openapi.json";

/// Names below this path contain a hash of the content.
const ASSETS: &str = "/assets/";

pub fn endpoints() -> Vec<Endpoint> {
    let file = |endpoint: Endpoint, content_type| endpoint.returns_text(content_type, "The file.");
    vec![
        file(
            Endpoint::get("/", "console", RequiredAccess::Nothing, page),
            "text/html",
        ),
        file(
            Endpoint::get("/favicon.svg", "console_icon", RequiredAccess::Nothing, icon),
            "image/svg+xml",
        ),
        file(
            Endpoint::get("/assets/{name}", "console_asset", RequiredAccess::Nothing, asset),
            "text/javascript",
        ),
    ]
}

/// Whether the path is a file of the console. These files have their own headers.
pub fn is_file(path: &str) -> bool {
    find(path).is_some()
}

fn find(path: &str) -> Option<&'static ConsoleFile> {
    FILES.iter().find(|file| file.path == path)
}

async fn page(State(net): State<net::ServerHandle>, headers: HeaderMap) -> Response {
    let mut response = answer("/", &headers);
    let policy = policy(&net, &headers).try_into().expect("a policy is ASCII text");
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

async fn icon(headers: HeaderMap) -> Response {
    answer("/favicon.svg", &headers)
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    answer(&format!("{ASSETS}{name}"), &headers)
}

fn answer(path: &str, headers: &HeaderMap) -> Response {
    let Some(file) = find(path) else {
        return HttpProblem::not_found(MISSING_FILE).into_response();
    };
    if file.is_gzip && !takes_gzip(headers) {
        let detail = "this file is only available compressed: send `Accept-Encoding: gzip`";
        return HttpProblem::of_status(StatusCode::NOT_ACCEPTABLE, detail.into()).into_response();
    }
    let caching = match path.starts_with(ASSETS) {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let own = [
        (header::CONTENT_TYPE, file.content_type),
        (header::CACHE_CONTROL, caching),
    ];
    let encoding: Option<(HeaderName, &str)> = file.is_gzip.then_some((header::CONTENT_ENCODING, "gzip"));
    (own, encoding.map(|encoding| [encoding]), file.bytes).into_response()
}

/// A request without `Accept-Encoding` accepts any encoding (RFC 9110, 12.5.3).
pub fn takes_gzip(headers: &HeaderMap) -> bool {
    let Some(accepted) = headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok())
    else {
        return true;
    };
    accepted.split(',').any(|item| {
        let (coding, weight) = item.split_once(';').unwrap_or((item, ""));
        let is_refused = matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
        matches!(coding.trim(), "gzip" | "*") && !is_refused
    })
}

/// The content security policy of the page. Listener addresses use the host name of the request.
fn policy(net: &net::ServerHandle, headers: &HeaderMap) -> String {
    let mut policy =
        String::from("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'");
    if let Some(host) = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .and_then(host_name)
    {
        // `self` covers the API's own port.
        let listeners = net.listeners().into_iter().filter(|one| !one.is_handed_over);
        for listener in listeners {
            let scheme = match listener.transport {
                Transport::WebSocket => "ws",
                Transport::SecureWebSocket => "wss",
                Transport::Tcp | Transport::Tls | Transport::Quic => continue,
            };
            write!(policy, " {scheme}://{host}:{}", listener.address.port()).expect("writing to a String cannot fail");
        }
    }
    policy.push_str("; base-uri 'none'; form-action 'self'; frame-ancestors 'none'");
    policy
}

/// Returns the host name without the port. `None` for names that a policy cannot contain, such as IPv6 addresses.
fn host_name(host: &str) -> Option<&str> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (!name.is_empty() && name.bytes().all(is_plain)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_unless_the_client_refuses_it() {
        let with = |value: &'static str| HeaderMap::from_iter([(header::ACCEPT_ENCODING, value.parse().unwrap())]);
        assert!(takes_gzip(&HeaderMap::new()));
        for taken in ["gzip, deflate, br", "br;q=1.0, gzip;q=0.5", "*"] {
            assert!(takes_gzip(&with(taken)), "{taken}");
        }
        for refused in ["identity", "br", "gzip;q=0", ""] {
            assert!(!takes_gzip(&with(refused)), "{refused}");
        }
    }

    #[test]
    fn host_that_could_end_the_directive_is_left_out() {
        assert_eq!(host_name("localhost:18083"), Some("localhost"));
        assert_eq!(host_name("mqtt.example.org"), Some("mqtt.example.org"));
        for odd in ["", "[::1]:1", "a b", "x; script-src *", "x'"] {
            assert_eq!(host_name(odd), None, "{odd}");
        }
    }
}

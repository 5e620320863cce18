//! MQTT over WebSocket on the API's own port. The console uses it, so it works under any host name and through any
//! proxy under which the console works.
//!
//! The API performs the upgrade with its own TLS, login and origin check. Then it hands the socket and the TLS state to
//! the broker's workers. From CONNECT on it is a connection like those of a WebSocket listener, with the name, limits
//! and counters of a listener. This side only checks whether the login is still valid. The login gives no MQTT
//! permissions: CONNECT identifies the client.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use net::ConnectionReservation;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use trust::own::trusted_peer;
use web::guard::{AuthenticatedUser, LoginRecheck, PeerAddress, RequiredAccess};
use web::problem::HttpProblem;
use web::role::Role;
use web::stall::StallGuard;
use web::websocket::{CHECK_INTERVAL, upgrade_to_mqtt};

use crate::app::Endpoint;
use crate::config::HttpPort;

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/mqtt", "mqtt", RequiredAccess::Operator, mqtt)
            .tag("Messages")
            .describe(
                "MQTT over WebSocket",
                "A WebSocket with the sub-protocol `mqtt`. As at a `ws` listener, CONNECT is authenticated and access rules apply. \
                 The API login only permits the WebSocket, which ends with the login and when its role is lowered. Clients that cannot set headers offer the sub-protocol \
                 `bearer.<token>`. For the broker, only an administrator on this machine is a local client. \
                 Pages of other origins are rejected.",
            )
            .fails(StatusCode::UPGRADE_REQUIRED)
            .fails(StatusCode::FORBIDDEN)
            .fails(StatusCode::SERVICE_UNAVAILABLE)
            .upgrades("The WebSocket is open."),
    ]
}

async fn mqtt(
    State(net): State<net::ServerHandle>,
    State(port): State<Arc<HttpPort>>,
    mut request: Request,
) -> Result<Response, HttpProblem> {
    check_origin(request.headers(), &port.allowed_hosts)?;
    let is_admin = request
        .extensions()
        .get::<AuthenticatedUser>()
        .is_some_and(|login| login.role == Role::Admin);
    let (response, on_upgrade, pass) = upgrade_to_mqtt(&mut request)?;
    let place = match net.reserve_connection() {
        None => return Err(HttpProblem::unavailable("this node does not accept MQTT on this port")),
        Some(Err(refusal)) => {
            let detail = format!("no further connections: {}", refusal.name());
            return Err(HttpProblem::unavailable(detail));
        }
        Some(Ok(place)) => place,
    };
    let client = ApiClient {
        address: request.extensions().get::<PeerAddress>().map(|peer| peer.0),
        is_admin,
    };
    tokio::spawn(serve(net, on_upgrade, place, pass, client));
    Ok(response)
}

/// Rejects pages of other origins, in case one has obtained a token. Ports are not compared, because many proxies omit
/// them.
fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<(), HttpProblem> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(origin) = text(header::ORIGIN) else {
        return Ok(());
    };
    let page = origin
        .split_once("://")
        .map_or("", |(_, authority)| host_name(authority));
    let host = host_name(text(header::HOST).unwrap_or_default());
    let is_named = |name: &str| !page.is_empty() && page.eq_ignore_ascii_case(name);
    if is_named(host) || allowed.iter().any(|name| is_named(name)) {
        return Ok(());
    }
    Err(HttpProblem::forbidden(
        "the page has another host than this request: configure the proxy to forward the Host header",
    ))
}

/// Returns `host:port` without the port. An IPv6 address keeps its brackets.
fn host_name(authority: &str) -> &str {
    match authority.rfind(']') {
        Some(end) => &authority[..=end],
        None => authority.split(':').next().unwrap_or(authority),
    }
}

/// The client of a request.
#[derive(Clone, Copy)]
struct ApiClient {
    /// The address that a proxy names, if it is trusted.
    address: Option<IpAddr>,
    is_admin: bool,
}

/// Runs until the connection ends, or ends it when the login is no longer valid.
async fn serve(
    net: net::ServerHandle,
    on_upgrade: OnUpgrade,
    place: ConnectionReservation,
    mut pass: LoginRecheck,
    client: ApiClient,
) {
    // The client has disconnected before the upgrade.
    let Ok(upgraded) = on_upgrade.await else { return };
    let Some(upgraded) = into_socket(upgraded, client) else {
        return;
    };
    let Ok(tenure) = net.hand_over(place, upgraded) else {
        return;
    };
    drop(net);
    while tenure.is_open() {
        // A timeout is the regular check.
        let _ = tokio::time::timeout(CHECK_INTERVAL, pass.changed()).await;
        if !pass.is_valid() {
            tenure.close();
        }
    }
}

type PlainStream = StallGuard<TcpStream>;

/// Returns the socket below the HTTP connection. `None` if the client sent data before the answer (RFC 6455, section
/// 4.1) or has disconnected.
fn into_socket(upgraded: Upgraded, client: ApiClient) -> Option<net::UpgradedConnection> {
    let (stream, tls, read) = match upgraded.downcast::<TokioIo<PlainStream>>() {
        Ok(parts) => (parts.io.into_inner(), None, parts.read_buf),
        Err(upgraded) => {
            let parts = upgraded.downcast::<TokioIo<TlsStream<PlainStream>>>().ok()?;
            let (stream, tls) = parts.io.into_inner().into_inner();
            (stream, Some(tls), parts.read_buf)
        }
    };
    if !read.is_empty() {
        return None;
    }
    let socket = stream.into_inner().into_std().ok()?;
    let peer = trusted_peer(socket.peer_addr().ok()?);
    Some(net::UpgradedConnection {
        address: client_address(peer, client),
        socket,
        tls,
    })
}

/// Local clients have extra rights without a password, and behind a proxy on this machine every client seems local.
/// Only an administrator, who could obtain these rights anyway, is treated as local.
fn client_address(peer: SocketAddr, client: ApiClient) -> SocketAddr {
    let is_local = |address: IpAddr| address.to_canonical().is_loopback();
    if is_local(peer.ip()) && client.is_admin && client.address.is_none_or(is_local) {
        return peer;
    }
    let address = client.address.unwrap_or(peer.ip());
    match is_local(address) {
        true => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), peer.port()),
        false => SocketAddr::new(address, peer.port()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn pages_of_the_requested_host_are_accepted() {
        let allowed = ["console.example.org".to_owned()];
        for (origin, host, expected) in [
            ("http://broker.lan:18083", "broker.lan:18083", true),
            ("http://BROKER.lan:18083", "broker.lan:18083", true),
            ("https://broker.lan", "broker.lan", true),
            // A proxy on another port that sends only the name.
            ("https://broker.lan:8443", "broker.lan", true),
            ("http://[fd00::7]:18083", "[fd00::7]:18083", true),
            ("https://console.example.org", "127.0.0.1:18083", true),
            ("http://[fd00::8]:18083", "[fd00::7]:18083", false),
            ("http://evil.example:18083", "broker.lan:18083", false),
            ("http://broker.lan.evil.example", "broker.lan", false),
            ("null", "null", false),
            ("http://", "", false),
        ] {
            let headers = HeaderMap::from_iter([
                (header::ORIGIN, HeaderValue::from_static(origin)),
                (header::HOST, HeaderValue::from_static(host)),
            ]);
            let is_allowed = check_origin(&headers, &allowed).is_ok();
            assert_eq!(is_allowed, expected, "{origin} to {host}");
        }
        assert!(check_origin(&HeaderMap::new(), &[]).is_ok(), "no origin");
    }

    #[test]
    fn only_an_administrator_counts_as_a_local_client() {
        let local = SocketAddr::from(([127, 0, 0, 1], 7));
        let mapped = "[::ffff:127.0.0.1]:7".parse().unwrap();
        let other = SocketAddr::from(([192, 0, 2, 1], 7));
        for (peer, is_admin, expected) in [
            (local, true, "127.0.0.1:7"),
            (local, false, "0.0.0.0:7"),
            (mapped, false, "0.0.0.0:7"),
            (other, false, "192.0.2.1:7"),
            (other, true, "192.0.2.1:7"),
        ] {
            assert_eq!(
                client_address(
                    peer,
                    ApiClient {
                        address: None,
                        is_admin
                    }
                )
                .to_string(),
                expected,
                "{peer} {is_admin}"
            );
        }
        let forwarded = ApiClient {
            address: Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            is_admin: true,
        };
        assert_eq!(client_address(local, forwarded).to_string(), "0.0.0.0:7");
    }
}

//! The words for QUIC connections that ended before CONNECT.

use std::borrow::Cow;

use quinn_proto::ConnectionError;
use rustls::AlertDescription;

use crate::counters::EarlyCloseReason;

/// First of the 256 error codes of TLS alerts.
const ALERTS: u64 = 0x100;

pub(super) fn describe(error: &ConnectionError) -> (EarlyCloseReason, Cow<'static, str>) {
    match error {
        ConnectionError::TransportError(error) => {
            let detail = match alert(error.code.into()) {
                Some(alert) => describe_own_alert(alert, &error.reason),
                None => format!("the client violated QUIC: {error}").into(),
            };
            (EarlyCloseReason::TlsHandshake, detail)
        }
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code.into()) {
            Some(alert) => (EarlyCloseReason::TlsHandshake, describe_peer_alert(alert)),
            None => (
                EarlyCloseReason::PeerClosed,
                format!("the client closed the connection: {close}").into(),
            ),
        },
        ConnectionError::TimedOut => (
            EarlyCloseReason::PeerClosed,
            "the client has not answered any more".into(),
        ),
        _ => (
            EarlyCloseReason::PeerClosed,
            "the client closed the connection before its CONNECT was complete".into(),
        ),
    }
}

fn alert(code: u64) -> Option<AlertDescription> {
    let alert = code.checked_sub(ALERTS)?;
    Some(AlertDescription::from(u8::try_from(alert).ok()?))
}

fn describe_own_alert(alert: AlertDescription, reason: &str) -> Cow<'static, str> {
    match alert {
        AlertDescription::NoApplicationProtocol => "the client does not offer the protocol mqtt (ALPN)".into(),
        AlertDescription::CertificateRequired => {
            "the client sent no certificate, but the listener's verify_client requires one".into()
        }
        AlertDescription::UnknownCA => {
            "the client's certificate was issued by a CA that is not in the listener's ca_file".into()
        }
        AlertDescription::CertificateExpired => "the client's certificate has expired".into(),
        _ => format!("the TLS handshake failed: {reason}").into(),
    }
}

fn describe_peer_alert(alert: AlertDescription) -> Cow<'static, str> {
    match alert {
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateRevoked
        | AlertDescription::UnsupportedCertificate => {
            format!("the client does not accept the server's certificate (TLS alert {alert:?})").into()
        }
        alert => format!("the client ended the TLS handshake (TLS alert {alert:?})").into(),
    }
}

//! The certificates of listeners: shown, replaced, reloaded. The API never returns private keys.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRef, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64ct::{Base64, Encoding};
use net::certificate;
use net::tls::ClientCertificates;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tracing::{error, info};
use web::audit_state::ChangeTarget;
use web::body;
use web::guard::RequiredAccess;
use web::problem::HttpProblem;

use super::login::PasswordInput;
use crate::app::{App, Endpoint};
use crate::certificate_admin::{CertificateAdmin, CertificateError, CertificateField, DiskState, ServerCertificate};
use crate::concurrency::ChangeLock;

const BODY_MAX: usize = 256 * 1024;
const PEM: &str = "application/x-pem-file";

/// Listeners with TLS and their certificates.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Certificates")]
pub struct CertificatesView {
    pub items: Vec<ListenerCertificate>,
}

/// The certificate of a listener.
#[derive(Serialize, JsonSchema)]
pub struct ListenerCertificate {
    /// Name of the listener, such as `tls.default`; `api` is the port of this API.
    pub listener: String,
    pub certificate_file: String,
    pub key_file: String,
    /// Other listeners that use one of these files.
    pub shared_with: Vec<String>,
    /// Whether the listener requests certificates from clients.
    pub client_certificates: ClientCertificateMode,
    /// The chain in force: the listener's certificate first, then its issuers. Empty until `tls.acme` has obtained the
    /// first one.
    pub chain: Vec<Certificate>,
    /// The last certificate of the chain is self-signed: a private authority, or the listener's own certificate.
    /// Clients must trust it; `authority.pem` returns it. Otherwise the authority is not part of the chain, such as a
    /// public one that clients trust already.
    pub has_authority: bool,
    /// The files, compared with the chain in force.
    pub on_disk: FileState,
    /// Why the files cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ClientCertificates")]
pub enum ClientCertificateMode {
    None,
    Optional,
    Required,
}

/// `changed`: the files take effect at a reload. `unusable`: a reload or restart would fail.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "CertificateFileState")]
pub enum FileState {
    Same,
    Changed,
    Unusable,
}

/// A certificate of a chain.
#[derive(Serialize, JsonSchema)]
pub struct Certificate {
    /// Subject, such as `CN=mqtt.example.org, O=Example`; may be empty.
    pub subject: String,
    pub issuer: String,
    /// Host names and addresses for which the certificate is valid.
    pub names: Vec<String>,
    /// Hexadecimal.
    pub serial: String,
    pub not_before_unix_ms: i64,
    pub not_after_unix_ms: i64,
    /// SHA-256 of the certificate, hexadecimal.
    pub fingerprint: String,
}

/// A new certificate and its private key.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCertificate {
    /// PEM: the listener's certificate first, then its issuers.
    certificate: String,
    /// PEM, not encrypted.
    key: PasswordInput,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/certificates", "certificates", RequiredAccess::Viewer, list)
            .tag("Certificates")
            .describe(
                "Certificates of listeners",
                "The certificates of the TLS listeners and of this port, and whether the files have changed. Never contains a private key.",
            )
            .returns::<CertificatesView>("The listeners and their certificates."),
        Endpoint::get("/api/v1/certificates/{listener}/authority.pem", "authority", RequiredAccess::Viewer, authority)
            .tag("Certificates")
            .describe(
                "Certificate that clients must trust",
                "The last certificate of the listener's chain, if it is self-signed. Clients use it as their authority (`--cafile`).",
            )
            .path_parameter("listener", "Name of the listener, such as `tls.default` or `api`.")
            .fails(StatusCode::NOT_FOUND)
            .returns_text(PEM, "The certificate."),
        Endpoint::put("/api/v1/certificates/{listener}", "replace_certificate", RequiredAccess::Admin, replace)
            .tag("Certificates")
            .describe(
                "Replace a listener's certificate",
                "Checks the certificate and the key, writes them to the files of the configuration, and uses them for new connections; \
                 open connections stay. If a check fails, nothing changes. Other listeners that use the \
                 same files get the new certificate, too.",
            )
            .path_parameter("listener", "Name of the listener, such as `tls.default` or `api`.")
            .takes::<NewCertificate>(BODY_MAX)
            .fails(StatusCode::NOT_FOUND)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<CertificatesView>("Replaced. All certificates in force.")
            .changes(certificates_state),
        Endpoint::post("/api/v1/certificates/reload", "reload_certificates", RequiredAccess::Admin, reload)
            .tag("Certificates")
            .describe(
                "Reload the certificates",
                "Reads the files again, for new connections; open connections stay. If one certificate cannot be used, no listener changes.",
            )
            .fails(StatusCode::CONFLICT)
            .returns::<CertificatesView>("Reloaded. All certificates in force.")
            .changes(certificates_state),
    ]
}

/// All certificates, for the audit log: it records the changed ones.
fn certificates_state(app: &App, _: &ChangeTarget) -> Option<Value> {
    let admin: Option<Arc<dyn CertificateAdmin>> = app.part();
    let held = admin?.list();
    let items: Vec<ListenerCertificate> = held.iter().map(|one| view(one, &held)).collect();
    serde_json::to_value(items).ok()
}

/// The certificates of the listeners.
#[derive(Clone)]
struct Certificates {
    /// `None`: no listener has one.
    admin: Option<Arc<dyn CertificateAdmin>>,
    changes: ChangeLock,
}

impl FromRef<App> for Certificates {
    fn from_ref(app: &App) -> Certificates {
        Certificates {
            admin: app.part(),
            changes: app.part(),
        }
    }
}

async fn list(State(certificates): State<Certificates>) -> Result<Json<CertificatesView>, HttpProblem> {
    let Some(admin) = certificates.admin else {
        return Ok(Json(CertificatesView { items: Vec::new() }));
    };
    let held = web::block(move || admin.list()).await?;
    let items = held.iter().map(|one| view(one, &held)).collect();
    Ok(Json(CertificatesView { items }))
}

async fn authority(
    State(certificates): State<Certificates>,
    Path(listener): Path<String>,
) -> Result<Response, HttpProblem> {
    let admin = certificates.admin.ok_or_else(|| problem(&CertificateError::Unknown))?;
    let held = web::block(move || admin.list()).await?;
    let one = held.iter().find(|one| one.listener == listener);
    let one = one.ok_or_else(|| problem(&CertificateError::Unknown))?;
    let found = authority_of(one).ok_or_else(|| {
        HttpProblem::not_found(
            "the listener's certificate chain does not end with a self-signed certificate: get the authority from the issuer of the certificate",
        )
    })?;
    let name = "attachment; filename=\"ca.pem\"";
    let headers = [(header::CONTENT_TYPE, PEM), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, pem(found)).into_response())
}

/// Returns the last certificate of the chain, if it is self-signed.
fn authority_of(one: &ServerCertificate) -> Option<&[u8]> {
    let last = one.chain.last()?;
    let last_certificate = certificate::describe(last)?;
    (!last_certificate.subject.is_empty() && last_certificate.subject == last_certificate.issuer).then_some(last)
}

fn pem(der: &[u8]) -> String {
    const LINE: usize = 64;
    let text = Base64::encode_string(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(LINE) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}

async fn replace(
    State(certificates): State<Certificates>,
    Path(listener): Path<String>,
    body::Json(new): body::Json<NewCertificate>,
) -> Result<Json<CertificatesView>, HttpProblem> {
    let replaced = listener.clone();
    change(&certificates, move |admin| {
        new.key
            .read(|key| admin.replace(&replaced, new.certificate.as_bytes(), key.as_bytes()))
    })
    .await?;
    info!(listener, "certificate replaced");
    list(State(certificates)).await
}

async fn reload(State(certificates): State<Certificates>) -> Result<Json<CertificatesView>, HttpProblem> {
    change(&certificates, |admin| admin.reload()).await?;
    info!("certificates reloaded");
    list(State(certificates)).await
}

async fn change(
    certificates: &Certificates,
    change: impl FnOnce(&dyn CertificateAdmin) -> Result<(), CertificateError> + Send + 'static,
) -> Result<(), HttpProblem> {
    let admin = certificates
        .admin
        .clone()
        .ok_or_else(|| problem(&CertificateError::Unknown))?;
    let _one_at_a_time = certificates.changes.lock().await;
    web::block(move || change(&*admin))
        .await?
        .map_err(|error| problem(&error))
}

fn problem(error: &CertificateError) -> HttpProblem {
    let detail = error.to_string();
    match error {
        CertificateError::Unknown => HttpProblem::not_found(detail),
        CertificateError::Rejected { field, .. } => HttpProblem::invalid(
            match field {
                CertificateField::Certificate => "certificate",
                CertificateField::Key => "key",
            },
            detail,
        ),
        CertificateError::ExternallyManaged { .. } | CertificateError::Files { .. } => {
            HttpProblem::conflict("certificate-files", "The files prevent the change", detail)
        }
        CertificateError::Workers { .. } => {
            error!(%error, "certificates");
            HttpProblem::internal(detail)
        }
    }
}

fn view(one: &ServerCertificate, all: &[ServerCertificate]) -> ListenerCertificate {
    let shares = |other: &&ServerCertificate| {
        other.listener != one.listener
            && (other.certificate_file == one.certificate_file || other.key_file == one.key_file)
    };
    let (on_disk, problem) = match &one.on_disk {
        DiskState::Same => (FileState::Same, None),
        DiskState::Changed => (FileState::Changed, None),
        DiskState::Unusable { reason } => (FileState::Unusable, Some(reason.clone())),
    };
    ListenerCertificate {
        listener: one.listener.clone(),
        certificate_file: one.certificate_file.display().to_string(),
        key_file: one.key_file.display().to_string(),
        shared_with: all.iter().filter(shares).map(|other| other.listener.clone()).collect(),
        client_certificates: match one.client_certificates {
            ClientCertificates::None => ClientCertificateMode::None,
            ClientCertificates::Optional => ClientCertificateMode::Optional,
            ClientCertificates::Required => ClientCertificateMode::Required,
        },
        chain: one.chain.iter().map(|der| describe(der)).collect(),
        has_authority: authority_of(one).is_some(),
        on_disk,
        problem,
    }
}

fn describe(der: &[u8]) -> Certificate {
    let parsed = certificate::describe(der).unwrap_or_default();
    Certificate {
        subject: parsed.subject,
        issuer: parsed.issuer,
        names: parsed.names,
        serial: parsed.serial,
        not_before_unix_ms: parsed.not_before_unix_s.saturating_mul(1000),
        not_after_unix_ms: parsed.not_after_unix_s.saturating_mul(1000),
        fingerprint: Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

//! The certificates that listeners show: looked at, replaced, loaded anew. Keys go in and never come out.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64ct::{Base64, Encoding};
use net::certificate;
use net::tls::ClientCertificates;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::{error, info};

use super::login::Secret;
use crate::app::App;
use crate::body;
use crate::certificate_admin::{CertificateAdmin, CertificateError, CertificateField, OnDisk, ServerCertificate};
use crate::endpoint::Endpoint;
use crate::problem::Problem;

const BODY_MAX: usize = 256 * 1024;
const PEM: &str = "application/x-pem-file";

/// The listeners that have certificates.
#[derive(Serialize, JsonSchema)]
pub struct Certificates {
    pub items: Vec<ListenerCertificate>,
}

/// What a listener shows to its clients.
#[derive(Serialize, JsonSchema)]
pub struct ListenerCertificate {
    /// `tls.default`; `api` is the port of this API.
    pub listener: String,
    pub certificate_file: String,
    pub key_file: String,
    /// Others that have one of these files, too.
    pub shared_with: Vec<String>,
    /// Whether clients have to show one.
    pub client_certificates: Asked,
    /// In force: the listener's own, then those up to an authority.
    pub chain: Vec<Certificate>,
    /// The chain ends with what clients have to trust: an authority of one's own, or a certificate that is nobody's but its own. It is at
    /// `authority.pem`. Otherwise the authority is elsewhere, such as a public one, which clients trust already.
    pub has_authority: bool,
    /// The files, compared with what is in force.
    pub on_disk: FileState,
    /// Why the files are unusable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ClientCertificates")]
pub enum Asked {
    None,
    Optional,
    Required,
}

/// `changed` waits for a reload; `unusable` would make a reload or a start fail.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "CertificateFileState")]
pub enum FileState {
    Same,
    Changed,
    Unusable,
}

/// One certificate of a chain.
#[derive(Serialize, JsonSchema)]
pub struct Certificate {
    /// `CN=mqtt.example.org, O=Example`; may be empty.
    pub subject: String,
    pub issuer: String,
    /// Host names and addresses that it is good for.
    pub names: Vec<String>,
    /// Hexadecimal.
    pub serial: String,
    pub not_before_unix_ms: i64,
    pub not_after_unix_ms: i64,
    /// SHA-256 of the whole, hexadecimal.
    pub fingerprint: String,
}

/// A new certificate and its key.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCertificate {
    /// PEM: the listener's own first, then those up to an authority.
    certificate: String,
    /// PEM, without a pass phrase.
    key: Secret,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/certificates", "certificates", list)
            .tag("Certificates")
            .says(
                "Certificates of listeners",
                "What each TLS listener and this port show to their clients, whether the files have changed since. Never a key.",
            )
            .returns::<Certificates>("All of them."),
        Endpoint::get("/api/v1/certificates/{listener}/authority.pem", "authority", authority)
            .tag("Certificates")
            .says(
                "What clients have to trust",
                "To be given to clients (`--cafile`): the end of the chain that the listener shows, if that has signed itself.",
            )
            .path_parameter("listener", "`tls.default`, or `api`.")
            .fails(StatusCode::NOT_FOUND)
            .returns_text(PEM, "One certificate."),
        Endpoint::put("/api/v1/certificates/{listener}", "replace_certificate", replace)
            .tag("Certificates")
            .says(
                "Replace a listener's certificate",
                "Certificate and key are checked, written to the files that the configuration names, and shown to whoever connects \
                 from then on; open connections stay. When something is wrong, nothing has changed. Other listeners with the \
                 same files take them over, too.",
            )
            .path_parameter("listener", "`tls.default`, or `api`.")
            .takes::<NewCertificate>(BODY_MAX)
            .fails(StatusCode::NOT_FOUND)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<Certificates>("Replaced; all certificates as they are now."),
        Endpoint::post("/api/v1/certificates/reload", "reload_certificates", reload)
            .tag("Certificates")
            .says(
                "Load certificates anew",
                "From the files, for whoever connects from then on; open connections stay. All or, when one cannot be used, none.",
            )
            .fails(StatusCode::CONFLICT)
            .returns::<Certificates>("Loaded; all certificates as they are now."),
    ]
}

async fn list(State(app): State<App>) -> Result<Json<Certificates>, Problem> {
    let Some(admin) = app.config().certificates.clone() else {
        return Ok(Json(Certificates { items: Vec::new() }));
    };
    let held = app.block(move || admin.list()).await?;
    let items = held.iter().map(|one| view(one, &held)).collect();
    Ok(Json(Certificates { items }))
}

async fn authority(State(app): State<App>, Path(listener): Path<String>) -> Result<Response, Problem> {
    let admin = app.config().certificates.clone();
    let admin = admin.ok_or_else(|| problem(&CertificateError::Unknown))?;
    let held = app.block(move || admin.list()).await?;
    let one = held.iter().find(|one| one.listener == listener);
    let one = one.ok_or_else(|| problem(&CertificateError::Unknown))?;
    let found = authority_of(one).ok_or_else(|| {
        Problem::not_found(
            "the chain of the listener does not end with an authority: whoever issued the certificate has it",
        )
    })?;
    let name = "attachment; filename=\"ca.pem\"";
    let headers = [(header::CONTENT_TYPE, PEM), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, pem(found)).into_response())
}

/// The last of its chain, if that has signed itself.
fn authority_of(one: &ServerCertificate) -> Option<&[u8]> {
    let last = one.chain.last()?;
    let told = certificate::describe(last)?;
    (!told.subject.is_empty() && told.subject == told.issuer).then_some(last)
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
    State(app): State<App>,
    Path(listener): Path<String>,
    body::Json(new): body::Json<NewCertificate>,
) -> Result<Json<Certificates>, Problem> {
    let replaced = listener.clone();
    change(&app, move |admin| {
        new.key
            .read(|key| admin.replace(&replaced, new.certificate.as_bytes(), key.as_bytes()))
    })
    .await?;
    info!(listener, "a certificate was replaced");
    list(State(app)).await
}

async fn reload(State(app): State<App>) -> Result<Json<Certificates>, Problem> {
    change(&app, |admin| admin.reload()).await?;
    info!("certificates were loaded anew");
    list(State(app)).await
}

async fn change(
    app: &App,
    change: impl FnOnce(&dyn CertificateAdmin) -> Result<(), CertificateError> + Send + 'static,
) -> Result<(), Problem> {
    let admin: Option<Arc<dyn CertificateAdmin>> = app.config().certificates.clone();
    let admin = admin.ok_or_else(|| problem(&CertificateError::Unknown))?;
    let _one_at_a_time = app.changes().lock().await;
    app.block(move || change(&*admin))
        .await?
        .map_err(|error| problem(&error))
}

fn problem(error: &CertificateError) -> Problem {
    let detail = error.to_string();
    match error {
        CertificateError::Unknown => Problem::not_found(detail),
        CertificateError::Rejected { field, .. } => Problem::invalid(
            match field {
                CertificateField::Certificate => "certificate",
                CertificateField::Key => "key",
            },
            detail,
        ),
        CertificateError::NotOurs { .. } | CertificateError::Files { .. } => {
            Problem::conflict("certificate-files", "The files stand in the way", detail)
        }
        CertificateError::Workers { .. } => {
            error!(%error, "certificates");
            Problem::internal(detail)
        }
    }
}

fn view(one: &ServerCertificate, all: &[ServerCertificate]) -> ListenerCertificate {
    let shares = |other: &&ServerCertificate| {
        other.listener != one.listener
            && (other.certificate_file == one.certificate_file || other.key_file == one.key_file)
    };
    let (on_disk, problem) = match &one.on_disk {
        OnDisk::Same => (FileState::Same, None),
        OnDisk::Changed => (FileState::Changed, None),
        OnDisk::Unusable { because } => (FileState::Unusable, Some(because.clone())),
    };
    ListenerCertificate {
        listener: one.listener.clone(),
        certificate_file: one.certificate_file.display().to_string(),
        key_file: one.key_file.display().to_string(),
        shared_with: all.iter().filter(shares).map(|other| other.listener.clone()).collect(),
        client_certificates: match one.client_certificates {
            ClientCertificates::None => Asked::None,
            ClientCertificates::Optional => Asked::Optional,
            ClientCertificates::Required => Asked::Required,
        },
        chain: one.chain.iter().map(|der| describe(der)).collect(),
        has_authority: authority_of(one).is_some(),
        on_disk,
        problem,
    }
}

fn describe(der: &[u8]) -> Certificate {
    let told = certificate::describe(der).unwrap_or_default();
    Certificate {
        subject: told.subject,
        issuer: told.issuer,
        names: told.names,
        serial: told.serial,
        not_before_unix_ms: told.not_before_unix_s.saturating_mul(1000),
        not_after_unix_ms: told.not_after_unix_s.saturating_mul(1000),
        fingerprint: Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

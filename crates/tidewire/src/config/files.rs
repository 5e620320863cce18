//! Checks of the files which the configuration names, so that `tidewire check` finds what a start would.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use net::tls::{CertificateOrigin, ClientCertificates, MissingList, TlsFiles};

use super::options::access::jwt::read_public_key;
use super::options::certificates::MissingListPolicy;
use super::options::listeners::VerifyClient;
use super::origin::{ConfigDiagnostic, ValueOrigin};
use super::resolve::tls::{oldest_version, stapling};
use super::resolve::{Config, EffectiveOption, ListenerTls};
use super::value::Unset;

/// A file, the name of the option it stands in, and how it is checked.
#[derive(Clone, Copy)]
struct NamedFile<'a> {
    path: &'a Path,
    option: &'static str,
    check: FileCheck,
}

type FileCheck = fn(&Path) -> Result<(), String>;

/// Label of the API. Labels of listeners contain a dot.
pub const API_LABEL: &str = "api";

/// Options that name files with secrets.
const SECRET_OPTIONS: [&str; 5] = ["key_file", "users_file", "password_file", "eab_key_file", "keytab_file"];

pub fn check(config: &Config, effective: &[EffectiveOption]) -> Vec<ConfigDiagnostic> {
    let named = named_files(config);
    let mut diagnostics = collect_diagnostics(effective, &named, |named| (named.check)(named.path));
    // The files can be checked together only if all of them exist.
    if diagnostics.is_empty() {
        for (label, files) in tls_files_by_label(config) {
            if let Err(error) = net::tls::server_config(&files) {
                // The server replaces a damaged certificate of its own.
                if files.origin == CertificateOrigin::Acme && error.path() == Some(&files.certificate) {
                    continue;
                }
                let is_to_blame = |named: &&NamedFile<'_>| error.path() == Some(named.path);
                let blamed: Vec<NamedFile<'_>> = named.iter().filter(is_to_blame).take(1).copied().collect();
                // Such as a list of cipher suites that does not fit the key.
                if blamed.is_empty() {
                    let key = match label.as_str() {
                        API_LABEL => label,
                        listener => format!("listeners.{listener}"),
                    };
                    diagnostics.push(ConfigDiagnostic {
                        origin: ValueOrigin::Default,
                        key: Some(key),
                        message: chain(&error),
                    });
                }
                diagnostics.extend(collect_diagnostics(effective, &blamed, |_| Err(chain(&error))));
            }
        }
        diagnostics.dedup();
    }
    diagnostics
}

fn collect_diagnostics(
    effective: &[EffectiveOption],
    files: &[NamedFile<'_>],
    check: impl Fn(&NamedFile<'_>) -> Result<(), String>,
) -> Vec<ConfigDiagnostic> {
    let mut diagnostics = Vec::new();
    for named in files {
        if let Err(message) = check(named) {
            let by = effective.iter().find(|value| names(value, named));
            let origin = by.map_or(ValueOrigin::Default, |value| value.origin.clone());
            let key = by.map(|value| value.key.to_string());
            let diagnostic = ConfigDiagnostic { origin, key, message };
            if !diagnostics.contains(&diagnostic) {
                diagnostics.push(diagnostic);
            }
        }
    }
    diagnostics
}

fn names(value: &EffectiveOption, named: &NamedFile<'_>) -> bool {
    value.origin != ValueOrigin::Default
        && value.def.name == named.option
        && value.value.as_str() == Some(&named.path.display().to_string())
}

/// Returns the certificate files of the listeners and of the API, by label, for example `tls.default`.
pub fn tls_files_by_label(config: &Config) -> Vec<(String, TlsFiles)> {
    let listeners = config.listeners.iter().filter_map(|listener| {
        let tls = listener.tls.as_ref()?;
        Some((listener.label(), tls_files(config, tls)))
    });
    let api = api_tls_files(config).map(|files| (API_LABEL.to_owned(), files));
    listeners.chain(api).collect()
}

/// Returns the settings from which `net` creates the TLS configuration of a listener.
pub fn tls_files(config: &Config, tls: &ListenerTls) -> TlsFiles {
    TlsFiles {
        certificate: tls.cert_file.clone(),
        key: tls.key_file.clone(),
        origin: origin(tls.is_acme),
        stapling: tls.stapling.clone(),
        client_authorities: tls.ca_file.clone(),
        client_certificates: match tls.verify_client {
            VerifyClient::None => ClientCertificates::None,
            VerifyClient::Optional => ClientCertificates::Optional,
            VerifyClient::Required => ClientCertificates::Required,
        },
        revocation_lists: tls.crl_file.clone(),
        downloaded_lists: tls.crl_url_files.clone(),
        missing_list: match config.crl.missing {
            // Only for downloads: the file of `crl_file` is always there.
            MissingListPolicy::Allow if !tls.crl_urls.is_empty() => MissingList::Allow,
            MissingListPolicy::Allow | MissingListPolicy::Deny => MissingList::Deny,
        },
        oldest_version: oldest_version(tls.min_tls_version),
        cipher_suites: tls.cipher_suites.clone(),
        is_for_quic: tls.is_for_quic,
    }
}

/// The same of the API, if it has a certificate.
pub fn api_tls_files(config: &Config) -> Option<TlsFiles> {
    let api = &config.api;
    let (certificate, key) = match api.acme && config.has_acme() {
        true => {
            let file = certificates::certificate_file(&config.data_dir);
            (file.clone(), file)
        }
        false => (api.cert_file.0.clone()?, api.key_file.0.clone()?),
    };
    let stapling = api.ocsp_stapling.then(|| {
        stapling(
            &config.data_dir,
            &certificate,
            &api.ocsp_responder_url,
            &api.ocsp_issuer_file,
        )
    });
    Some(TlsFiles {
        stapling,
        certificate,
        key,
        origin: origin(api.acme),
        oldest_version: oldest_version(api.min_tls_version),
        cipher_suites: api.cipher_suites.clone(),
        ..TlsFiles::default()
    })
}

fn origin(is_acme: bool) -> CertificateOrigin {
    match is_acme {
        true => CertificateOrigin::Acme,
        false => CertificateOrigin::Files,
    }
}

/// Files that must be there.
fn named_files(config: &Config) -> Vec<NamedFile<'_>> {
    let mut files = Vec::new();
    for tls in config.listeners.iter().filter_map(|listener| listener.tls.as_ref()) {
        // The server creates those of `tls.acme`.
        if !tls.is_acme {
            files.push(NamedFile {
                path: &tls.cert_file,
                option: "cert_file",
                check: can_be_read,
            });
            files.push(NamedFile {
                path: &tls.key_file,
                option: "key_file",
                check: is_protected,
            });
        }
        let issuer = tls.stapling.as_ref().and_then(|stapling| stapling.issuer.as_deref());
        for (path, option, check) in [
            (tls.ca_file.as_deref(), "ca_file", can_be_read as FileCheck),
            (tls.crl_file.as_deref(), "crl_file", can_be_read),
            (issuer, "ocsp_issuer_file", has_certificate),
        ] {
            files.extend(path.map(|path| NamedFile { path, option, check }));
        }
    }
    let (api, access, http) = (&config.api, &config.access, &config.access_http.options);
    let (postgresql, mysql, redis) = (&config.access_postgresql, &config.access_mysql, &config.access_redis);
    let mongodb = &config.access_mongodb;
    let ldap = &config.access_ldap.options;
    let optional: [(&Unset<PathBuf>, _, FileCheck); 35] = [
        (&api.cert_file, "cert_file", can_be_read),
        (&api.key_file, "key_file", is_protected),
        (&api.ocsp_issuer_file, "ocsp_issuer_file", has_certificate),
        (&api.users_file, "users_file", is_console_users_file),
        (&config.acme.ca_file, "ca_file", can_be_read),
        (&config.acme.eab_key_file, "eab_key_file", is_external_account_key),
        (&config.crl.ca_file, "ca_file", can_be_read),
        (&config.ocsp.ca_file, "ca_file", can_be_read),
        (&access.password_file, "password_file", is_password_file),
        (&access.acl_file, "acl_file", is_acl_file),
        (&http.ca_file, "ca_file", can_be_read),
        (&http.cert_file, "cert_file", can_be_read),
        (&http.key_file, "key_file", is_protected),
        (&postgresql.ca_file, "ca_file", can_be_read),
        (&postgresql.cert_file, "cert_file", can_be_read),
        (&postgresql.key_file, "key_file", is_protected),
        (&mysql.ca_file, "ca_file", can_be_read),
        (&mysql.cert_file, "cert_file", can_be_read),
        (&mysql.key_file, "key_file", is_protected),
        (&config.access_sqlite.file, "file", is_sqlite_file),
        (&config.access_sources.sqlite.file, "file", is_sqlite_file),
        (&mongodb.ca_file, "ca_file", can_be_read),
        (&mongodb.cert_file, "cert_file", can_be_read),
        (&mongodb.key_file, "key_file", is_protected),
        (&redis.ca_file, "ca_file", can_be_read),
        (&redis.cert_file, "cert_file", can_be_read),
        (&redis.key_file, "key_file", is_protected),
        (&ldap.ca_file, "ca_file", can_be_read),
        (&ldap.cert_file, "cert_file", can_be_read),
        (&ldap.key_file, "key_file", is_protected),
        (&config.access_kerberos.keytab_file, "keytab_file", is_protected),
        (&config.jwt.public_key_file, "public_key_file", is_public_key),
        (&config.jwt.ca_file, "ca_file", can_be_read),
        (&config.oidc.options.ca_file, "ca_file", can_be_read),
        (&config.opentelemetry.ca_file, "ca_file", can_be_read),
    ];
    let sources = &config.access_sources;
    let (http, mongodb, redis) = (&sources.http, &sources.mongodb, &sources.redis);
    let (postgresql, mysql) = (&sources.postgresql, &sources.mysql);
    let of_sources = [
        (&http.ca_file, &http.cert_file, &http.key_file),
        (&postgresql.ca_file, &postgresql.cert_file, &postgresql.key_file),
        (&mysql.ca_file, &mysql.cert_file, &mysql.key_file),
        (&mongodb.ca_file, &mongodb.cert_file, &mongodb.key_file),
        (&redis.ca_file, &redis.cert_file, &redis.key_file),
    ];
    let of_sources = of_sources.into_iter().flat_map(|(ca, cert, key)| {
        [
            (ca, "ca_file", can_be_read as FileCheck),
            (cert, "cert_file", can_be_read),
            (key, "key_file", is_protected),
        ]
    });
    for (path, option, check) in optional.into_iter().chain(of_sources) {
        files.extend(path.0.as_deref().map(|path| NamedFile { path, option, check }));
    }
    files
}

fn can_be_read(path: &Path) -> Result<(), String> {
    let unreadable = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    // Opening a pipe would wait for a writer, and a device may have no end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(format!("{} is not a file", path.display()));
    }
    File::open(path).map(drop).map_err(unreadable)
}

fn has_certificate(path: &Path) -> Result<(), String> {
    can_be_read(path)?;
    net::tls::certificates(path).map(drop).map_err(|error| chain(&error))
}

/// Returns the files with secrets, each with its option.
pub fn secret_files(config: &Config) -> impl Iterator<Item = (&'static str, &Path)> {
    let with_secrets = |named: &NamedFile<'_>| SECRET_OPTIONS.contains(&named.option);
    let files = named_files(config).into_iter().filter(with_secrets);
    files.map(|named| (named.option, named.path))
}

/// Refuses a file that every user of this machine can change: it contains users, access rules or a private key.
fn is_protected(path: &Path) -> Result<(), String> {
    can_be_read(path)?;
    has_protected_mode(path)
}

fn has_protected_mode(path: &Path) -> Result<(), String> {
    let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.mode() & 0o7777);
    if mode & 0o002 != 0 {
        return Err(format!(
            "every user of this machine can change {} (mode {mode:o}): run chmod 600 on it",
            path.display()
        ));
    }
    Ok(())
}

fn is_external_account_key(path: &Path) -> Result<(), String> {
    is_protected(path)?;
    #[cfg(feature = "acme")]
    certificates::acme::read_external_account("", path)?;
    Ok(())
}

/// Only SQLite opens the file: see `FileVersion`.
fn is_sqlite_file(path: &Path) -> Result<(), String> {
    #[cfg(feature = "sqlite")]
    auth_providers::sqlite::check_file(path)?;
    has_protected_mode(path)
}

fn is_password_file(path: &Path) -> Result<(), String> {
    is_protected(path)?;
    auth::Users::load(path).map(drop).map_err(|error| chain(&error))
}

fn is_console_users_file(path: &Path) -> Result<(), String> {
    is_protected(path)?;
    web::admins::Admins::open(path).map(drop).map_err(|error| chain(&error))
}

/// Refuses a file that every user of this machine can change: with a key of their own they could log in.
fn is_public_key(path: &Path) -> Result<(), String> {
    is_protected(path)?;
    read_public_key(path).map(drop)
}

fn is_acl_file(path: &Path) -> Result<(), String> {
    is_protected(path)?;
    auth::load_mosquitto_acl(path).map(drop).map_err(|error| chain(&error))
}

/// An error with its causes, on one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text.replace('\n', "; ")
}

//! Address and credentials of the API: from the command line, the environment, or the configuration of the server on
//! this machine.

use std::fs;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, value_parser};

use super::api::ApiError;
use crate::cli::config_args;
use crate::client::args::ClientTlsOptions;
use crate::client::target::{ConnectTarget, UrlScheme};
use crate::config::{Config, ConfigSources};
use crate::passwd;
use connectors::Secret;

pub(super) const TOKEN_VARIABLE: &str = "TIDEWIRE_API_TOKEN";
const PASSWORD_VARIABLE: &str = "TIDEWIRE_API_PASSWORD";

/// Name of the user that the first start creates.
const FIRST_USER: &str = "admin";

/// A server, and what shows it that we may.
pub struct ApiAddress {
    pub target: ConnectTarget,
    pub tls: ClientTlsOptions,
    pub login: ApiLogin,
}

pub enum ApiLogin {
    Token(Secret),
    User { name: String, password: Secret },
}

/// Options of every command that asks the API with a login.
pub fn args() -> Vec<Arg> {
    let mut args = address_args();
    args.extend([
        Arg::new("user")
            .long("user")
            .value_name("NAME")
            .help("User of the API; its password is asked for, or in TIDEWIRE_API_PASSWORD. Without it a token in TIDEWIRE_API_TOKEN, \
                 or the first password in the data directory"),
        path("password-file", "File with the password of --user").requires("user"),
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .help("Print the response of the API, for scripts"),
    ]);
    args.extend(config_args());
    args.into_iter().map(|arg| arg.global(true)).collect()
}

/// Options of a command that asks the API without a login: the address, and how the server proves its identity.
pub fn address_args() -> Vec<Arg> {
    vec![
        Arg::new("api")
            .long("api")
            .value_name("URL")
            .help("The API [default: api.bind of the configuration, else http://127.0.0.1:18083]"),
        path("cafile", "Trusted certificates (PEM) for https"),
        Arg::new("insecure")
            .long("insecure")
            .action(ArgAction::SetTrue)
            .help("Do not verify the host name in the certificate"),
    ]
}

fn path(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("PATH")
        .value_parser(value_parser!(PathBuf))
        .help(help)
}

impl ApiAddress {
    pub fn find(matches: &ArgMatches, sources: &ConfigSources) -> Result<ApiAddress, ApiError> {
        let mut config = ConfigOnce { sources, config: None };
        let (target, tls) = server(matches, &mut config)?;
        let login = login(matches, sources, &mut config)?;
        Ok(ApiAddress { target, tls, login })
    }

    /// Returns only the server, without a login.
    pub fn server(
        matches: &ArgMatches,
        sources: &ConfigSources,
    ) -> Result<(ConnectTarget, ClientTlsOptions), ApiError> {
        server(matches, &mut ConfigOnce { sources, config: None })
    }
}

fn server(matches: &ArgMatches, config: &mut ConfigOnce<'_>) -> Result<(ConnectTarget, ClientTlsOptions), ApiError> {
    let mut tls = ClientTlsOptions {
        ca_file: matches.get_one("cafile").cloned(),
        is_insecure: matches.get_flag("insecure"),
        ..ClientTlsOptions::default()
    };
    let target = match matches.get_one::<String>("api") {
        Some(url) => ConnectTarget::parse_api_url(url).map_err(ApiError::Usage)?,
        None => configured(config.get()?, &mut tls)?,
    };
    Ok((target, tls))
}

/// Read when it is needed.
struct ConfigOnce<'a> {
    sources: &'a ConfigSources,
    config: Option<Config>,
}

impl ConfigOnce<'_> {
    fn get(&mut self) -> Result<&Config, ApiError> {
        if self.config.is_none() {
            let loaded = crate::config::load(self.sources).map_err(|diagnostics| {
                let all: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
                let all = all.join("\n  ");
                ApiError::Usage(format!(
                    "cannot read the address of the API from the configuration:\n  {all}"
                ))
            })?;
            self.config = Some(loaded.config);
        }
        Ok(self.config.as_ref().expect("it was set above"))
    }
}

/// The server that this configuration is for, on this machine.
fn configured(config: &Config, tls: &mut ClientTlsOptions) -> Result<ConnectTarget, ApiError> {
    let api = &config.api;
    if !api.enabled {
        return Err(ApiError::Usage("api.enabled is false: this server has no API".into()));
    }
    let certificate = config.api_certificate();
    let is_https = certificate.is_some();
    if tls.ca_file.is_none() && is_https {
        // The certificate file of the server itself: it is trusted for any host name.
        tls.ca_file = certificate;
        tls.is_insecure = true;
    }
    let host = match api.bind.host.as_str() {
        "0.0.0.0" | "" => "127.0.0.1",
        "::" | "[::]" => "::1",
        host => host,
    };
    Ok(ConnectTarget {
        scheme: if is_https { UrlScheme::Https } else { UrlScheme::Http },
        host: host.trim_matches(['[', ']']).to_owned(),
        port: api.bind.port,
        path: String::new(),
        unix: None,
    })
}

fn login(matches: &ArgMatches, sources: &ConfigSources, config: &mut ConfigOnce<'_>) -> Result<ApiLogin, ApiError> {
    if let Some(name) = matches.get_one::<String>("user") {
        return Ok(ApiLogin::User {
            name: name.clone(),
            password: password(matches, sources)?,
        });
    }
    if let Some(token) = sources.variable(TOKEN_VARIABLE) {
        return Ok(ApiLogin::Token(Secret::new(token)));
    }
    let data_dir = &config.get()?.data_dir;
    let first = web::admins::Admins::first_password_file(data_dir);
    let password = first.and_then(|file| fs::read_to_string(file).ok());
    match password {
        Some(password) => Ok(ApiLogin::User {
            name: FIRST_USER.into(),
            password: Secret::new(password.trim_end()),
        }),
        None => Err(ApiError::Usage(format!(
            "cannot log in: --user is not given, and {} has no readable admin-password; use --user NAME, or set a token in {TOKEN_VARIABLE}",
            data_dir.display()
        ))),
    }
}

fn password(matches: &ArgMatches, sources: &ConfigSources) -> Result<Secret, ApiError> {
    if let Some(file) = matches.get_one::<PathBuf>("password-file") {
        let text = fs::read_to_string(file).map_err(|error| ApiError::Usage(format!("{}: {error}", file.display())))?;
        return Ok(Secret::new(text.trim_end_matches(['\r', '\n'])));
    }
    if let Some(password) = sources.variable(PASSWORD_VARIABLE) {
        return Ok(Secret::new(password));
    }
    passwd::ask("Password: ").map(Secret::new).map_err(ApiError::Usage)
}

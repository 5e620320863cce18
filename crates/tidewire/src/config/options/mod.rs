//! Every option there is, section by section. Names follow MQTT 5; where Mosquitto or EMQX has a name that says the
//! same, it is theirs.

pub mod access;
pub mod certificates;
pub mod integration;
pub mod listeners;
pub mod mqtt;
pub mod opentelemetry;
pub mod platform;
pub mod server;
pub mod single_sign_on;

use super::option::Section;

/// All sections, in the order in which they are documented.
pub const SECTIONS: &[Section] = &[
    server::Node::SECTION,
    listeners::ListenerOptions::SECTION,
    listeners::TlsOptions::SECTION,
    listeners::WsOptions::SECTION,
    listeners::QuicOptions::SECTION,
    listeners::TlsDefaults::SECTION,
    certificates::AcmeOptions::SECTION,
    certificates::CrlOptions::SECTION,
    certificates::OcspOptions::SECTION,
    mqtt::Mqtt::SECTION,
    mqtt::SHARED_STRATEGIES,
    mqtt::Retained::SECTION,
    server::Limits::SECTION,
    server::Durability::SECTION,
    access::Access::SECTION,
    access::FlappingOptions::SECTION,
    access::CLIENT_ATTRS,
    access::USERS,
    access::http::HttpAccess::SECTION,
    access::http::HEADERS,
    access::http::BODY,
    access::postgresql::PostgresqlAccess::SECTION,
    access::mysql::MysqlAccess::SECTION,
    access::sqlite::SqliteAccess::SECTION,
    access::mongodb::MongodbAccess::SECTION,
    access::redis::RedisAccess::SECTION,
    access::ldap::LdapAccess::SECTION,
    access::ldap::CLIENT_ATTRS,
    access::kerberos::KerberosAccess::SECTION,
    access::source::HttpSourceOptions::SECTION,
    access::source::HEADERS,
    access::source::BODY,
    access::source::PostgresqlSourceOptions::SECTION,
    access::source::MysqlSourceOptions::SECTION,
    access::source::SqliteSourceOptions::SECTION,
    access::source::MongodbSourceOptions::SECTION,
    access::source::RedisSourceOptions::SECTION,
    access::jwt::Jwt::SECTION,
    access::jwt::CLAIMS,
    integration::Integration::SECTION,
    integration::CONNECTORS,
    integration::ACTIONS,
    integration::SOURCES,
    integration::RULES,
    platform::Platform::SECTION,
    server::Sys::SECTION,
    server::Api::SECTION,
    single_sign_on::Oidc::SECTION,
    single_sign_on::ROLES,
    opentelemetry::OpenTelemetry::SECTION,
    server::Benchmark::SECTION,
    server::Log::SECTION,
];

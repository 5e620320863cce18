//! Groups of options that several authentication providers have.

/// Declares the section of a provider: its own options, and behind them the groups that follow the block.
///
/// | group | options |
/// |---|---|
/// | `hash` | how the stored passwords are hashed |
/// | `tls` | `tls` and the certificates of connections |
/// | `limits` | time, number and cache of the questions, and what happens without an answer |
macro_rules! provider_section {
    ($(#[doc = $about:literal])+ pub struct $name:ident at [$($segment:expr),+] { $($own:tt)* }) => {
        $crate::config::option::section! {
            $(#[doc = $about])+
            pub struct $name at [$($segment),+] { $($own)* }
        }
    };
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident at [$($segment:expr),+] { $($own:tt)* }
        + hash $($rest:tt)*
    ) => {
        provider_section! {
            $(#[doc = $about])+
            pub struct $name at [$($segment),+] {
                $($own)*
                /// How the stored passwords are hashed: `plain`, `md5`, `sha`, `sha256`, `sha512`, `pbkdf2`, `bcrypt`,
                /// or `argon2` (a PHC string of argon2id). Digests and keys of PBKDF2 are hexadecimal. `plain`, `md5`
                /// and `sha` do not protect passwords: the server warns at the start.
                restart password_hash_algorithm: $crate::config::options::access::password_hash::HashAlgorithm = "sha256";
                /// Where the salt is: before the password (`prefix`), after it (`suffix`), or not used (`disable`). Has
                /// no effect for `pbkdf2`, `bcrypt` and `argon2`.
                restart salt_position: $crate::config::options::access::password_hash::SaltPosition = "prefix";
                /// Hash function of `pbkdf2`: `sha`, `sha224`, `sha256`, `sha384` or `sha512`.
                restart mac_fun: $crate::config::options::access::password_hash::MacFunction = "sha256";
                /// Iterations of `pbkdf2`.
                restart iterations: u32 = "4096" ["1", "2000000"] in "iterations";
                /// Length of the keys of `pbkdf2`. `0`: the length of the hash function.
                restart dk_length: u32 = "0" ["0", "128"] in "bytes";
            }
            $($rest)*
        }
    };
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident at [$($segment:expr),+] { $($own:tt)* }
        + tls $($rest:tt)*
    ) => {
        provider_section! {
            $(#[doc = $about])+
            pub struct $name at [$($segment),+] {
                $($own)*
                /// Whether connections use TLS. Without it, an attacker on the network path can read passwords or their
                /// hashes, and admit clients.
                restart tls: bool = "false";
                /// Trusted certificate authorities for `tls`, as PEM. Empty: those of the operating system.
                restart ca_file: $crate::config::value::Unset<std::path::PathBuf> = "";
                /// Client certificate for `tls`, as PEM.
                restart cert_file: $crate::config::value::Unset<std::path::PathBuf> = "";
                /// Private key of the client certificate, as PEM.
                restart key_file: $crate::config::value::Unset<std::path::PathBuf> = "";
                /// Verifies the certificate of the server. Without verification, an attacker on the network path can
                /// read passwords or their hashes, and admit clients.
                restart verify: bool = "true";
            }
            $($rest)*
        }
    };
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident at [$($segment:expr),+] { $($own:tt)* }
        + limits $($rest:tt)*
    ) => {
        provider_section! {
            $(#[doc = $about])+
            pub struct $name at [$($segment),+] {
                $($own)*
                /// Maximum time until a client has an answer. It waits for other questions at most half of this time.
                restart timeout: std::time::Duration = "5s" ["10ms", "1m"];
                /// Maximum number of questions at a time. Further questions wait.
                restart max_concurrent: u32 = "64" ["1", "1024"] in "questions";
                /// Maximum number of waiting questions. Clients with further questions are rejected (0x88, Server
                /// unavailable).
                restart max_waiting: u32 = "10000" ["0", "1000000"] in "questions";
                /// Maximum number of cached answers. Answers that do not allow a client occupy at most a quarter.
                restart cache_size: u32 = "100000" ["0", "10000000"] in "answers";
                /// How long an answer that allows a client is valid: a changed password or a removed user takes effect
                /// after this time. `0s` asks for each connection.
                restart cache_allowed: std::time::Duration = "1m" ["0s", "1d"];
                /// How long another answer is valid.
                restart cache_denied: std::time::Duration = "10s" ["0s", "1d"];
                /// Decision about a client without a usable answer in time: `deny` rejects it (0x88, Server
                /// unavailable), `ignore` asks the next provider, `allow` admits it without a check.
                restart on_failure: $crate::config::options::access::OnFailure = "deny";
            }
            $($rest)*
        }
    };
}
pub(crate) use provider_section;

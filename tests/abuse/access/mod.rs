//! Attacks on authentication and authorization. All are refused, at bounded cost.
//!
//! | attack | test |
//! |---|---|
//! | 1. no credentials, or only a part of them | `access_control::c01` |
//! | 2. a password with a NUL and more bytes | `access_control::c01` |
//! | 3. an empty password | `access_control::c01` |
//! | 4. the name of a user in upper case | `access_control::c01` |
//! | 5. find the names of users by the answer | `access_control::c01`, `scram::unknown_users` |
//! | 6. packets behind a refused CONNECT | `access_control::c02` |
//! | 7. packets before a slow provider has decided | `providers::packets_before` |
//! | 8. PUBLISH to a topic of another user | `access_control::c03` |
//! | 9. filters that match topics of others | `access_control::c04` |
//! | 10. the same filters in shared subscriptions | `access_control::c05` |
//! | 11. exclusive subscriptions and `$delayed` | `access_control::c06` |
//! | 12. a will for a topic of another user | `access_control::c07` |
//! | 13. wildcards in a user name or client id | `access_control::c08` |
//! | 14. the stored session of another user | `access_control::c09` |
//! | 15. take over the connection of another user | `access_control::c10` |
//! | 16. topic aliases for forbidden topics | `access_control::c11` |
//! | 17. system topics | `access_control::c12` |
//! | 18. topics that look alike in Unicode | `access_control::c13` |
//! | 19. store or delete retained messages of others | `access_control::c14` |
//! | 20. lock a user out with wrong passwords | `access_control::c15` |
//! | 21. a share group with the name of another one | `access_control::c16` |
//! | 22. avoid the rules with WebSocket | `access_control::c17` |
//! | 23. join a share group for topics of others | `access_control::c18` |
//! | 24. receive queued messages after a revocation | `access_control::c19` |
//! | 25. take the client id of another user | `client_ids::rules_bind` |
//! | 26. a certificate without a clear name, such as two names or a NUL | `client_certificates::certificate_without` |
//! | 27. an expired certificate, or one of another authority | `client_certificates::certificate_must` |
//! | 28. a revoked certificate | `client_certificates::revoked` |
//! | 29. a certificate with the name of a superuser | `client_certificates::name_of_a_superuser` |
//! | 30. replay the last message of SCRAM | `scram::last_message` |
//! | 31. the proof of one user with the name of another | `scram::user_name_of_connect` |
//! | 32. become another user by re-authentication | `scram::reauthentication` |
//! | 33. a method that is not configured, or is weaker | `scram::methods` |
//! | 34. malformed messages of SCRAM | `scram::garbage` |
//! | 35. a thousand exchanges without an end | `scram::thousand` |
//! | 36. guess passwords over SCRAM | `scram::wrong_proofs` |
//! | 37. guess passwords, also from many addresses | `guesses::guessed_passwords` |
//! | 38. guess access tokens over MQTT and HTTP | `guesses::guessed_tokens` |
//! | 39. tokens and API keys after their user was deleted | `logins::tokens_of_another`, `logins::keys_for_other` |
//! | 40. an API key for an equal administrator | `logins::administrator_cannot` |
//! | 41. a stolen refresh token | `logins::refresh_token` |
//! | 42. alarms of a device that has another customer now | `device_owners::alarms` |
//! | 43. a token without, or with half of, its signature | `tokens::forged` |
//! | 44. a signature of zeros, or with numbers out of range | `tokens::forged` |
//! | 45. `alg` none in any spelling | `tokens::forged` |
//! | 46. changed claims or a changed header | `tokens::forged` |
//! | 47. a key or a certificate in the header | `tokens::forged` |
//! | 48. a path or SQL as key id | `tokens::forged` |
//! | 49. a token with an extension that is not understood | `tokens::forged` |
//! | 50. another encoding of the same token | `tokens::forged` |
//! | 51. a token that is too long | `tokens::forged` |
//! | 52. times of the wrong type | `tokens::claims_of` |
//! | 53. a list, a pattern or a placeholder as subject | `tokens::claims_of` |
//! | 54. access rules that are not understood | `tokens::claims_of` |
//! | 55. a stolen token with another user name, or in another field | `tokens::stolen` |
//! | 56. an expired token | `tokens::stolen` |
//! | 57. make the server request an address in the header | `tokens::addresses` |
//! | 58. wildcards in the name of a token, for rules with placeholders | `tokens::names` |
//! | 59. cause a failure of a service that admits clients then | `providers::clients_cannot` |
//! | 60. line breaks, JSON and placeholders in names for the service | `providers::clients_cannot` |
//! | 61. an answer of the service that is not clear | `providers::unclear` |
//! | 62. make the service redirect the server | `providers::unclear` |
//! | 63. the cached answer for another password, client id or address | `providers::cached` |
//! | 64. wildcards in attributes, for rules with placeholders | `providers::attributes` |
//! | 65. fill the memory while a service does not answer | `providers::waiting` |
//! | 66. a user of the broker or of a tenant at the console, and the reverse | `confusion::each_kind` |
//! | 67. passwords, tokens and keys of the API as MQTT credentials | `confusion::credentials` |
//! | 68. the token of a device as password, client id or API token | `confusion::device_tokens` |
//! | 69. SQL and patterns as the token of a device | `confusion::device_tokens` |
//! | 70. the client id of the session of a device | `confusion::users_cannot` |
//! | 71. a token of one API at the other | `confusion::tokens_of_one` |
//! | 72. another spelling of a path, and headers that change it | `confusion::other_spellings` |
//! | 73. occupy the questions to a service by connecting and disconnecting | `providers::clients_that` |
//! | 74. a revoked certificate while its revocation list cannot be downloaded, or has expired | `downloaded_lists` |
//! | 75. an API key with scopes for other operations, such as to create a key | `logins::keys_with_scopes` |
//! | 76. a certificate name with a wildcard, for rules with attributes | `client_certificates::attributes_come` |
//! | 77. fill the memory with exchanges without an end | `scram::large_exchanges` |
//! | 78. a role in a namespace for the platform and for other namespaces | `confusion::administrator_of_a_namespace` |

pub mod access_control;
mod client_certificates;
mod client_ids;
mod confusion;
mod device_owners;
mod downloaded_lists;
pub mod guesses;
mod logins;
mod providers;
mod scram;
mod tokens;

use std::fs;
use std::path::Path;

#[test]
fn each_attack_of_the_list_has_a_test() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/abuse/access");
    let source = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    let list = source("mod.rs");
    let mut attacks = 0;
    for row in list.lines().filter_map(|line| line.strip_prefix("//! | ")) {
        let Some((attack, tests)) = row.split_once(". ").and_then(|(_, row)| row.split_once(" | ")) else {
            continue;
        };
        attacks += 1;
        for name in tests.split('`').filter(|part| part.contains("::")) {
            let (module, test) = name.split_once("::").expect("a module and a test");
            assert!(
                source(&format!("{module}.rs")).contains(&format!("\nfn {test}")),
                "{attack}: {name}"
            );
        }
    }
    assert!(attacks >= 60, "{attacks}");
}

//! An API server that knows a few users, for tests.

use std::collections::BTreeSet;
use std::sync::Mutex;

use async_trait::async_trait;

use super::{ReviewError, Reviewer};
use mirrorlet_core::access::User;

/// A question that it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::server::node) enum Question {
    /// The user of that token.
    Token(String),
    /// Whether a user may: name, verb, subresource.
    Access(String, String, String),
}

/// Accepts the token `token-of-<name>` for any user; the test sets everything else.
#[derive(Default)]
pub(in crate::server::node) struct FakeReviewer {
    /// Users with all permissions.
    pub(in crate::server::node) admins: BTreeSet<String>,
    /// Name, verb and subresource of additional permissions.
    pub(in crate::server::node) allowed: Mutex<BTreeSet<(String, String, String)>>,
    /// Whether it leaves questions unanswered for now.
    pub(in crate::server::node) holds: tokio::sync::watch::Sender<bool>,
    /// Whether it is away.
    pub(in crate::server::node) away: Mutex<bool>,
    pub(in crate::server::node) asked: Mutex<Vec<Question>>,
}

impl FakeReviewer {
    async fn answers(&self, question: Question) -> Result<(), ReviewError> {
        self.asked.lock().unwrap().push(question);
        let mut holds = self.holds.subscribe();
        holds.wait_for(|holds| !holds).await.unwrap();
        if *self.away.lock().unwrap() {
            return Err(ReviewError("it is away".to_owned()));
        }
        Ok(())
    }
}

#[async_trait]
impl Reviewer for FakeReviewer {
    async fn review_token(&self, token: &str) -> Result<Option<User>, ReviewError> {
        self.answers(Question::Token(token.to_owned())).await?;
        Ok(token.strip_prefix("token-of-").map(|name| User {
            name: name.to_owned(),
            groups: vec!["people".to_owned()],
            ..User::default()
        }))
    }

    async fn review_access(
        &self,
        user: &User,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, ReviewError> {
        let question = (user.name.clone(), verb.to_owned(), subresource.to_owned());
        let (name, verb, subresource) = question.clone();
        self.answers(Question::Access(name, verb, subresource))
            .await?;
        let is_admin = self.admins.contains(&user.name);
        Ok(is_admin || self.allowed.lock().unwrap().contains(&question))
    }
}

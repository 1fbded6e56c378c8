// A graph with its variables, loaded in the order in which RASR loads one: native libraries, graph, initialisers,
// checkpoint.
#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"

using tensorflow::Tensor;

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Graph {
 public:
  using Feeds = std::vector<std::pair<std::string, Tensor>>;

  // Loads a meta graph. Its variables get their initial values, and those of the checkpoint if there is one:
  // `checkpoint` is a path without suffix, or empty. Throws Error.
  Graph(const std::string& meta_graph, const std::string& checkpoint, const std::vector<std::string>& libraries,
        int threads);
  ~Graph();

  // Returns the fetched tensors after the targets ran. Throws Error with the message of TensorFlow.
  std::vector<Tensor> run(const Feeds& feeds, const std::vector<std::string>& fetches,
                          const std::vector<std::string>& targets = {}) const;

  // Returns the names in a collection of nodes; empty if the graph does not have it.
  std::vector<std::string> collection(const std::string& name) const;

  // Returns the values of variables.
  std::vector<Tensor> read(const std::vector<std::string>& variables) const;

  // Sets variables by feeding their initial values and running their initialisers.
  void assign(const std::vector<std::string>& variables, const std::vector<Tensor>& values) const;

 private:
  struct Variable {
    std::string initial_value, initializer, snapshot;
  };

  const Variable& variable(const std::string& name) const;

  tensorflow::MetaGraphDef meta_;
  std::map<std::string, Variable> variables_;  // by the name of their op
  std::unique_ptr<tensorflow::Session> session_;
};

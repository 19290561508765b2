"""Updates: versions of the weights, gradients, optimizers and the policies that order them."""
